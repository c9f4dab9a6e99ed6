"""The known traps of a speculative server: what doctor finds, and what it leaves alone."""

import pytest

from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo
from proxy.tools.doctor.spec import check_spec
from tests.harness.server_infos import ABSENT, SPEC, rank, server


def found(info: ServerInfo) -> dict[str, Finding]:
    """Findings by code, without those that say that all is well."""
    findings = [each for each in check_spec(info) if each.severity is not Severity.OK]
    assert all(each.what and each.why and each.change for each in findings)
    return {each.code.removeprefix("spec."): each for each in findings}


def tree(steps: int, topk: int, tokens: int, **changed: object) -> ServerInfo:
    """A server with drafts of that shape."""
    return server(
        SPEC,
        speculative_num_steps=steps,
        speculative_eagle_topk=topk,
        speculative_num_draft_tokens=tokens,
        **changed,
    )


def test_a_chain_with_full_graphs_is_told_of_adaptive_only() -> None:
    """The one note is that SGLang has something of its own to try first."""
    findings = found(server(SPEC))
    assert findings.keys() == {"adaptive_available"}
    assert "--speculative-adaptive" in findings["adaptive_available"].change


def test_the_flags_of_the_documentation_are_a_warning() -> None:
    """The pattern of the slow case that gave rise to all this."""
    ranks = [rank(SPEC, decode_cuda_graph_bs=[1, 2])]
    findings = found(tree(5, 8, 32, internal_states=ranks))
    assert findings["demo_flags"].severity is Severity.WARNING
    assert "--speculative-eagle-topk 1" in findings["demo_flags"].change
    assert "--cuda-graph-max-bs-decode 16" in findings["graph_ceiling"].change


def test_a_wide_tree_with_many_sequences_is_a_warning() -> None:
    """Verification fills the GPU at a few sequences."""
    assert found(tree(4, 4, 21))["wide_tree"].severity is Severity.WARNING


def test_a_small_tree_is_a_note() -> None:
    """It is SGLang's own choice for Llama."""
    assert found(tree(5, 4, 8))["tree"].severity is Severity.NOTE


def test_a_tree_for_few_sequences_is_fine() -> None:
    """A latency lane of four may have what serves it best."""
    few = [rank(SPEC, effective_max_running_requests_per_dp=4)]
    assert not {"tree", "wide_tree"} & found(tree(4, 4, 21, internal_states=few)).keys()


def test_a_long_chain_is_no_tree() -> None:
    """However many tokens it has."""
    assert not {"tree", "wide_tree"} & found(tree(16, 1, 17)).keys()


def test_a_graph_ceiling_below_what_runs_is_a_warning() -> None:
    """With the flag of the server's own version."""
    ranks = [rank(SPEC, decode_cuda_graph_bs=[1, 2, 4, 8])]
    finding = found(server(SPEC, internal_states=ranks))["graph_ceiling"]
    assert finding.change == "--cuda-graph-max-bs-decode 16, or --max-running-requests 8"


def test_an_older_server_is_told_its_own_flag() -> None:
    """It was --cuda-graph-max-bs before decode and prefill had one each."""
    ranks = [rank(SPEC, decode_cuda_graph_bs=ABSENT)]
    finding = found(server(SPEC, internal_states=ranks, cuda_graph_max_bs=2))["graph_ceiling"]
    assert finding.change.startswith("--cuda-graph-max-bs 16")


def test_the_flag_is_of_each_rank() -> None:
    """Two ranks with 16 each need graphs up to 16, not 32."""
    ranks = [rank(SPEC, decode_cuda_graph_bs=[8])] * 2
    finding = found(server(SPEC, internal_states=ranks))["graph_ceiling"]
    assert "--cuda-graph-max-bs-decode 16," in finding.change


def test_a_cpu_has_no_graphs_to_miss() -> None:
    """Its arguments name a ceiling all the same."""
    ranks = [rank(SPEC, decode_cuda_graph_bs=ABSENT)]
    info = server(SPEC, device="cpu", internal_states=ranks, cuda_graph_max_bs=2)
    assert "spec.graph_ceiling" not in {each.code for each in check_spec(info)}


@pytest.mark.parametrize(
    ("command", "severity"),
    [
        ("--model-path m --port 30001", Severity.WARNING),
        ("--model-path m --max-running-requests 48", None),
        ("--model-path m --max-running-requests=48", None),
        ("--model-path m --max-running 48", None),
        ("--config pair.yaml", Severity.NOTE),
        ("engine.Engine(model_path='m')", Severity.NOTE),
        ("--model-path 'unbalanced", Severity.NOTE),
        (None, Severity.NOTE),
        (ABSENT, Severity.NOTE),
    ],
)
def test_48_sequences_that_nobody_asked_for(command: object, severity: Severity | None) -> None:
    """A warning only where the command shows that nobody did."""
    finding = found(server(SPEC, max_running_requests=48, launch_command=command)).get("silent_48")
    assert (None if finding is None else finding.severity) is severity


def test_a_draft_with_a_shorter_context_is_a_warning() -> None:
    """With the bound for prompts that keeps them from it."""
    finding = found(server(SPEC, draft={"max_position_embeddings": 2048}))["draft_context"]
    assert "max_spec_prompt_tokens = 2048" in finding.change


def test_a_draft_that_is_known_to_be_short_is_a_warning() -> None:
    """Also where its files are not on this machine."""
    path = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    assert "draft_context" in found(server(SPEC, speculative_draft_model_path=path))


def test_a_draft_with_the_whole_context_is_fine() -> None:
    """Nothing is said of one that is not known either."""
    assert "draft_context" not in found(server(SPEC, draft={"max_position_embeddings": 32768}))


@pytest.mark.parametrize("name", ["single", "acc"])
def test_a_threshold_below_1_is_not_lossless(name: str) -> None:
    """Drafts are kept that the model would not have chosen."""
    field = f"speculative_accept_threshold_{name}"
    finding = found(server(SPEC, **{field: 0.9}))["not_lossless"]
    assert finding.severity is Severity.WARNING
    assert f"--speculative-accept-threshold-{name} 1" in finding.change


@pytest.mark.parametrize(
    "changed",
    [
        {"speculative_algorithm": "NGRAM"},
        {"speculative_eagle_topk": 4},
        {"enable_dp_attention": True},
        {"enable_multi_layer_eagle": True},
        {"enable_two_batch_overlap": True},
        {"enable_pdmux": True},
        {"enable_hisparse": True},
        {"enable_lora": True},
    ],
)
def test_adaptive_is_not_offered_where_sglang_excludes_it(changed: dict[str, object]) -> None:
    """It would be ignored, or the server would not start."""
    assert "adaptive_available" not in found(server(SPEC, **changed))


def test_adaptive_that_is_on_is_a_note() -> None:
    """It may be all that is needed."""
    assert found(server(SPEC, speculative_adaptive=True))["adaptive"].severity is Severity.NOTE


def test_a_version_without_adaptive_is_not_told_of_it() -> None:
    """Unknown fields are unknown."""
    assert found(server(SPEC, speculative_adaptive=ABSENT)) == {}


@pytest.mark.parametrize(
    "changed",
    [{"enable_lora": True}, {"lora_paths": ["law=/adapters/law"]}, {"adapters": ("law",)}],
)
def test_adapters_with_speculation_are_a_warning(changed: dict[str, object]) -> None:
    """The draft knows nothing of them."""
    assert found(server(SPEC, **changed))["lora"].severity is Severity.WARNING


def test_features_that_speculation_gets_wrong_point_to_eligibility() -> None:
    """A server that offers them needs the rules that keep them from it."""
    finding = found(server(SPEC, enable_custom_logit_processor=True))["unsafe_features"]
    assert "[eligibility]" in finding.change


def test_without_metrics_acceptance_cannot_be_seen() -> None:
    """The controller's guard needs the counters."""
    assert found(server(SPEC, enable_metrics=False))["metrics_off"].change == "--enable-metrics"


def test_attention_dp_is_a_note() -> None:
    """Limits are of each rank then."""
    assert found(server(SPEC, enable_dp_attention=True))["attention_dp"].severity is Severity.NOTE


def test_a_server_that_says_little_is_found_nothing() -> None:
    """Another vendor's fields are unknown, which is never a trap by itself."""
    fields = {name: ABSENT for name in server(SPEC).arguments if name != "speculative_algorithm"}
    assert found(server(SPEC, **fields)) == {}
