"""What the pair is, as one server would say it: `/server_info` of both in one.

base's account, since it serves whatever is asked, with what spec says of speculation. The shape is
SGLang 0.5.23's, for those that read it: load generators look into the first of `internal_states`
for `avg_spec_accept_length` and `effective_max_running_requests_per_dp`, routers for the model and
its parallelism.
"""

from collections.abc import Mapping
from typing import Final

from proxy.control.redact import redacted
from proxy.core.words import UpstreamName

_SPECULATION: Final = "speculative_"
_ACCEPTED: Final = "avg_spec_accept_length"


def one_server(pages: Mapping[UpstreamName, dict[str, object]]) -> dict[str, object]:
    """The pair by the pages of its servers, of which one may be missing; without secrets.

    Raises RecursionError where a page is nested too deeply.
    """
    spec = pages.get(UpstreamName.SPEC)
    base = pages.get(UpstreamName.BASE)
    if base is None or spec is None:
        (page,) = pages.values()
        return redacted(page)
    made = {**base, **_of_speculation(spec)}
    states, theirs = base.get("internal_states"), spec.get("internal_states")
    if isinstance(states, list) and isinstance(theirs, list):
        made["internal_states"] = _states(states, theirs)
    # What is not passed on of spec's page says which texts are secrets, too.
    return redacted(made, (spec, base))


def _of_speculation(page: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value
        for name, value in page.items()
        if name.startswith(_SPECULATION) or name == _ACCEPTED
    }


def _states(base: list[object], spec: list[object]) -> list[object]:
    """Of base, where each rank says of speculation what spec's of the same number says."""
    made: list[object] = []
    for number, state in enumerate(base):
        other = spec[min(number, len(spec) - 1)] if spec else None
        if isinstance(state, dict) and isinstance(other, dict):
            made.append({**state, **_of_speculation(other)})
        else:
            made.append(state)
    return made
