"""SGLang's administration, done by both servers: what became of it, as one answer.

It is a success only where both have succeeded. An answer then has SGLang's own shape with both
results beside it; else it is an error that says who has done it and who has not, with both results,
since the pair may be uneven then and somebody has to mend it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from proxy.control.engine import Answer, Question
from proxy.control.pages import JSON, Heard, json_body, parsed
from proxy.core.answers import openai_error
from proxy.core.errands import Errand, Reply
from proxy.core.words import UpstreamName
from proxy.errors import AdministrationFailed, EngineError, PartialFailure, Refusal

MAX_ANSWER_BYTES: Final = 2**20
"""Of one server; what SGLang answers here has a few hundred, and more for each adapter."""

_TEXT: Final = "text/plain; charset=utf-8"
_BOTH: Final = (UpstreamName.SPEC, UpstreamName.BASE)


@dataclass(frozen=True, slots=True)
class _Done:
    """What one server has made of it."""

    status: int | None
    """None where it has not answered."""
    body: object
    """JSON, or a text; or why there is no answer."""
    readable: bool = True
    """Whether it is what its type says."""

    @property
    def well(self) -> bool:
        """Whether it has done it: by its status, and by `success` where SGLang has that."""
        if self.status is None or not 200 <= self.status < 300:  # noqa: PLR2004 - RFC 9110
            return False
        if not self.readable:
            return False  # `success` may be false there
        return not isinstance(self.body, dict) or self.body.get("success", True) is True

    @property
    def shown(self) -> dict[str, object]:
        """As it stands in an answer."""
        name = "error" if self.status is None else "body"
        return {"status": self.status, name: self.body}


def question(errand: Errand) -> Question:
    """What both are told: what the client has sent, as it came."""
    return Question(
        method=errand.method,
        path=errand.template,
        query=errand.query,
        headers=errand.headers,
        body=errand.body,
        most=MAX_ANSWER_BYTES,
    )


def result(errand: Errand, heard: Heard) -> Reply:
    """One answer for both."""
    done = {name: _done(heard[name]) for name in _BOTH}
    well = [name for name in _BOTH if done[name].well]
    if len(well) == len(_BOTH):
        return _success(done)
    return _failure(errand.template, done, well)


def _done(heard: Answer | EngineError) -> _Done:
    if isinstance(heard, EngineError):
        return _Done(None, str(heard))
    text = heard.body.decode(errors="replace")
    typed = heard.content_type.partition(";")[0].strip().lower() == JSON
    try:
        value = parsed(heard.body)
    except (ValueError, RecursionError):
        return _Done(
            heard.status, text, readable=not typed or heard.status == HTTPStatus.NO_CONTENT
        )
    # An object says `success` whatever its type is said to be; any other text may look like JSON.
    return _Done(heard.status, value if typed or isinstance(value, dict) else text)


def _success(done: Mapping[UpstreamName, _Done]) -> Reply:
    spec, base = (done[name].body for name in _BOTH)
    if isinstance(spec, str) and isinstance(base, str) and (spec or base):
        return Reply(status=HTTPStatus.OK, content_type=_TEXT, body=_texts(done))
    fields = base if isinstance(base, dict) else {}
    return _reply(HTTPStatus.OK, fields, done)


def _texts(done: Mapping[UpstreamName, _Done]) -> bytes:
    """Where SGLang answers a text: base's as it came, and what each has answered below it."""
    spec, base = (done[name] for name in _BOTH)
    theirs = "the same" if spec.body == base.body else str(spec.body).rstrip("\n")
    lines = (str(base.body).rstrip("\n"), f"base: {base.status}", f"spec: {spec.status}, {theirs}")
    return ("\n".join(lines) + "\n").encode()


def _failure(path: str, done: Mapping[UpstreamName, _Done], well: list[UpstreamName]) -> Reply:
    whys = "; ".join(f"{name} {_why(each)}" for name, each in done.items() if name not in well)
    refusal: Refusal
    if well:
        refusal = PartialFailure(f"{path} was done by {well[0]} alone: {whys}")
    else:
        refusal = AdministrationFailed(f"{path} was done by neither server: {whys}")
    fields = {"error": openai_error(refusal)}
    return _reply(refusal.status, fields, done, refusal)


def _why(done: _Done) -> str:
    if done.status is None:
        return f"has not answered ({done.body})"
    if done.status >= 300:  # noqa: PLR2004 - RFC 9110
        return f"answers {done.status}"
    with_what = "without success" if done.readable else "with JSON that cannot be read"
    return f"answers {done.status} {with_what}"


def _reply(
    status: int,
    fields: Mapping[str, object],
    done: Mapping[UpstreamName, _Done],
    refusal: Refusal | None = None,
) -> Reply:
    shown = {name: each.shown for name, each in done.items()}
    return Reply(
        status=status,
        content_type=JSON,
        body=json_body({**fields, "upstreams": shown}),
        refusal=refusal,
    )
