"""/server_info of two servers as that of one."""

import pytest

from proxy.control.one_server import one_server
from proxy.core.words import UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
SPEC_PAGE: dict[str, object] = {
    "model_path": "m",
    "port": 1,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "max_running_requests": 48,
    "api_key": "sk-secret-of-spec",
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 48,
            "speculative_algorithm": "EAGLE3",
            "avg_spec_accept_length": 2.5,
            "api_key": "sk-secret-of-spec",
        }
    ],
}
BASE_PAGE: dict[str, object] = {
    "model_path": "m",
    "port": 2,
    "speculative_algorithm": None,
    "max_running_requests": 2048,
    "launch_command": "--api-key sk-secret-of-base",
    "admin_api_key": "sk-secret-of-base",
    "internal_states": [
        {"effective_max_running_requests_per_dp": 2048, "speculative_algorithm": None, "rank": 0},
        {"effective_max_running_requests_per_dp": 2048, "speculative_algorithm": None, "rank": 1},
        "odd",
    ],
}


def test_it_is_base_with_what_spec_says_of_speculation() -> None:
    """In each rank, too; where spec has fewer ranks, its last one's."""
    state = {
        "effective_max_running_requests_per_dp": 2048,
        "speculative_algorithm": "EAGLE3",
        "avg_spec_accept_length": 2.5,
    }
    assert one_server({SPEC: SPEC_PAGE, BASE: BASE_PAGE}) == {
        "model_path": "m",
        "port": 2,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "max_running_requests": 2048,
        "internal_states": [{**state, "rank": 0}, {**state, "rank": 1}, "odd"],
    }


def test_a_secret_of_one_is_none_of_the_other() -> None:
    """Neither where spec's field is not passed on, nor where base's stands in its place."""
    spec = {**SPEC_PAGE, "speculative_note": "of sk-secret-of-base", "internal_states": []}
    base = {**BASE_PAGE, "note": "as sk-secret-of-spec", "internal_states": []}
    made = one_server({SPEC: spec, BASE: base})
    assert (made["note"], made["speculative_note"]) == ("[removed]", "[removed]")


@pytest.mark.parametrize(("name", "page"), [(SPEC, SPEC_PAGE), (BASE, BASE_PAGE)])
def test_one_alone_is_itself_without_secrets(name: UpstreamName, page: dict[str, object]) -> None:
    """Nothing of the other is made up."""
    made = one_server({name: page})
    assert made["port"] == page["port"]
    assert made["speculative_algorithm"] == page["speculative_algorithm"]
    assert "secret" not in str(made)


@pytest.mark.parametrize("odd", [None, "a", [], {"a": 1}, [None]])
def test_odd_states_are_left_as_they_are(odd: object) -> None:
    """A server may say anything."""
    page: dict[str, object] = {"internal_states": odd}
    assert one_server({SPEC: SPEC_PAGE, BASE: page})["internal_states"] == odd
    assert "secret" not in str(one_server({SPEC: page, BASE: BASE_PAGE}))
    assert one_server({SPEC: page, BASE: {}}).get("internal_states") is None
