"""How the two share a machine, and what either may have set up badly: what doctor finds."""

from collections.abc import Iterable

import pytest

from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.memory import check_memory
from proxy.tools.doctor.server import check_server
from proxy.tools.doctor.server_info import ServerInfo
from tests.harness.server_infos import ABSENT, BASE, SPEC, rank, server


def bad(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Findings by code, without those that say that all is well."""
    kept = [each for each in findings if each.severity is not Severity.OK]
    assert all(each.what and each.why and each.change for each in kept)
    return {each.code: each for each in kept}


def memory(spec: ServerInfo, base: ServerInfo) -> dict[str, Finding]:
    """What is found of both together."""
    return bad(check_memory(spec, base))


def room(tokens: int, **changed: object) -> list[dict[str, object]]:
    """The state of a server whose KV cache has that many tokens."""
    return [rank(SPEC, memory_usage={"token_capacity": tokens}, **changed)]


def test_a_good_pair_has_nothing_to_say() -> None:
    """Both were told what to take, and base has the larger share."""
    assert memory(server(SPEC), server(BASE)) == {}
    assert bad(check_server(server(SPEC))) == {}


def test_two_servers_that_were_told_nothing_are_a_warning() -> None:
    """The order of their starts decides, and two at once fail."""
    spec = server(SPEC, launch_command="--model-path m")
    base = server(BASE, launch_command="--model-path m")
    finding = memory(spec, base)["memory.fraction_unset"]
    assert finding.severity is Severity.WARNING
    assert finding.server is None


def test_one_server_that_was_told_nothing_is_a_note() -> None:
    """It takes what the other left, which may be what was meant."""
    finding = memory(server(SPEC), server(BASE, launch_command="--model-path m"))
    assert finding["memory.fraction_unset"].severity is Severity.NOTE
    assert finding["memory.fraction_unset"].server is BASE


@pytest.mark.parametrize("flag", ["--mem-fraction 0.4", "--max-total-tokens=100000"])
def test_either_flag_says_what_to_take(flag: str) -> None:
    """Also shortened, as argparse takes it and SGLang's documentation writes it."""
    assert memory(server(SPEC, launch_command=flag), server(BASE)) == {}


def test_a_command_that_cannot_be_seen_is_unknown() -> None:
    """Nothing is concluded from it."""
    assert memory(server(SPEC, launch_command=ABSENT), server(BASE)) == {}


def test_a_spec_with_more_room_than_base_is_a_warning() -> None:
    """The usual sign of a launch in the wrong order."""
    finding = memory(server(SPEC, internal_states=room(300_000)), server(BASE))["memory.split"]
    assert "300000" in finding.what


@pytest.mark.parametrize(
    "apart", [{"url": "http://10.0.0.2:30000"}, {"base_gpu_id": 1}, {"base_gpu_id": ABSENT}]
)
def test_servers_on_other_gpus_share_nothing(apart: dict[str, object]) -> None:
    """Another machine or another GPU has its own memory; one that does not say is left alone."""
    spec = server(SPEC, internal_states=room(300_000))
    assert memory(spec, server(BASE, **apart)) == {}


def test_gpus_that_overlap_are_shared() -> None:
    """GPUs 0 and 1 of spec, 1 and 2 of base."""
    spec = server(SPEC, tp_size=2, internal_states=room(300_000))
    assert "memory.split" in memory(spec, server(BASE, tp_size=2, base_gpu_id=1))


def test_room_for_less_than_one_request_is_a_warning() -> None:
    """A long request would be refused."""
    finding = memory(server(SPEC, internal_states=room(20_000)), server(BASE))
    assert finding["memory.below_context"].server is SPEC


def test_little_room_for_each_sequence_is_a_warning() -> None:
    """They would be taken back while they run."""
    few = room(40_000, effective_max_running_requests_per_dp=128)
    finding = memory(server(SPEC, internal_states=few), server(BASE))["memory.little_room"]
    assert finding.change.endswith("--max-running-requests 39")


@pytest.mark.parametrize(
    "changed",
    [
        {"disable_cuda_graph": True},
        {"disable_decode_cuda_graph": True},
        {"cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 32}}},
    ],
)
def test_graphs_that_are_off_are_a_warning(changed: dict[str, object]) -> None:
    """By any of the flags; on a CPU there are none to begin with."""
    assert "server.graphs_off" in bad(check_server(server(BASE, **changed)))
    on_cpu = server(BASE, device="cpu", **changed)
    assert bad(check_server(on_cpu)) == {}


def test_prefill_in_one_piece_is_a_warning() -> None:
    """-1 is SGLang's way of saying off."""
    assert "server.chunked_prefill_off" in bad(check_server(server(BASE, chunked_prefill_size=-1)))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"disable_radix_cache": True}, "server.radix_off"),
        ({"sleep_on_idle": False}, "server.spins_when_idle"),
    ],
)
def test_what_costs_a_little_is_a_note(changed: dict[str, object], code: str) -> None:
    """It may be on purpose."""
    findings = bad(check_server(server(BASE, **changed)))
    assert findings[code].severity is Severity.NOTE


def test_random_weights_are_a_warning() -> None:
    """Nothing that is measured of them holds."""
    assert "server.dummy_weights" in bad(check_server(server(BASE, load_format="dummy")))


@pytest.mark.parametrize("form", [{"min_p": 0.05}, '{"min_p": 0.05}'])
def test_preferred_parameters_that_act_unseen_are_a_warning(form: object) -> None:
    """As an object or as text: eligibility sees requests only."""
    finding = bad(check_server(server(SPEC, preferred_sampling_params=form)))
    assert "min_p 0.05" in finding["server.sampling_defaults"].what


def test_a_model_that_sets_a_penalty_is_a_warning() -> None:
    """Qwen's models do."""
    finding = bad(check_server(server(SPEC, generation={"repetition_penalty": 1.05, "top_p": 0.8})))
    assert "--sampling-defaults openai" in finding["server.sampling_defaults"].change
    assert "top_p" not in finding["server.sampling_defaults"].what


def test_neutral_defaults_are_fine() -> None:
    """And so is any default that the server was told to leave."""
    neutral: dict[str, object] = {"repetition_penalty": 1.0, "min_p": 0}
    assert bad(check_server(server(SPEC, generation=neutral))) == {}
    acting: dict[str, object] = {"min_p": 0.1}
    assert bad(check_server(server(SPEC, generation=acting, sampling_defaults="openai"))) == {}


def test_a_model_elsewhere_is_to_be_looked_at() -> None:
    """Its file is not shown, so doctor says where to look."""
    elsewhere = ServerInfo(
        name=SPEC, url="http://a", known=True, arguments=server(SPEC).arguments, generation=None
    )
    assert bad(check_server(elsewhere)).keys() == {"server.sampling_defaults_unseen"}


def test_a_server_without_server_info_is_a_warning() -> None:
    """Nothing else is said of it."""
    assert bad(check_server(server(SPEC, known=False))).keys() == {"reach.server_info"}
