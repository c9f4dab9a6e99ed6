"""Is the speculative server set up to gain from speculation? Pure checks of its flags.

Each is a known trap: where a default or a copied command line costs most of what speculation could
bring. Flags and defaults are those of SGLang 0.5.23.
"""

from collections.abc import Iterator
from typing import Final

from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo

_SILENT_RUNNING: Final = 48
"""What SGLang sets for max_running_requests with speculation where it is not asked for."""

_DEMO: Final = (5, 8, 32)
"""Steps, topk and draft tokens of the commands in SGLang's documentation, which show one user.

A run with exactly these and a CUDA-graph ceiling of 2 on Llama-3.1-8B gave 350 tok/s, where the
plain server gave 1174 (https://lihuigu.cn, ShareGPT, 500 requests at once).
"""

_WIDE_TREE: Final = 16
"""Draft tokens of a sequence from which verification fills a GPU at a few sequences.

A tree of 21 on an 8B model was slower than plain decoding at batch 64 on all workloads of
arXiv 2601.11580; EAGLE's authors advise against trees for batches (SafeAILab/EAGLE#269).
"""

_TREE_BATCH: Final = 8
"""Batch from which a chain does better than a tree (the same sources)."""

_KNOWN_DRAFT_CONTEXT: Final = {"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": 2048}
"""max_position_embeddings of drafts that are known to be shorter than their target."""

_ADAPTIVE_ALGORITHMS: Final = ("EAGLE", "EAGLE3")


def check_spec(spec: ServerInfo) -> Iterator[Finding]:
    """What may keep a server that speculates from gaining by it."""
    yield from _check_drafts(spec)
    yield from _check_graphs(spec)
    yield from _check_running(spec)
    yield from _check_draft_context(spec)
    yield from _check_thresholds(spec)
    yield from _check_adaptive(spec)
    yield from _check_features(spec)
    yield from _check_lora(spec)
    yield from _check_attention_dp(spec)
    yield from _check_metrics(spec)


def _found(code: str, severity: Severity, what: str, why: str = "", change: str = "") -> Finding:
    return Finding(
        code=f"spec.{code}",
        severity=severity,
        what=what,
        why=why,
        change=change,
        server=UpstreamName.SPEC,
    )


def _check_drafts(spec: ServerInfo) -> Iterator[Finding]:
    arguments = spec.arguments
    steps = arguments.count("speculative_num_steps")
    topk = arguments.count("speculative_eagle_topk")
    tokens = arguments.count("speculative_num_draft_tokens")
    shape = f"{spec.algorithm}, {_shown(steps)} steps, topk {_shown(topk)}, {_shown(tokens)} tokens"
    chain = (
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4, "
        "then `specswitch calibrate`"
    )
    running = spec.identity.cap
    batched = running is None or running > _TREE_BATCH
    if (steps, topk, tokens) == _DEMO:
        yield _found(
            "demo_flags",
            Severity.WARNING,
            f"{shape}: the flags of SGLang's documentation, meant for one user",
            "32 tokens are verified for some 3 that are kept: about a third of the plain server's "
            "throughput under load",
            chain,
        )
    elif tokens is not None and tokens >= _WIDE_TREE and (topk or 1) > 1 and batched:
        yield _found(
            "wide_tree",
            Severity.WARNING,
            f"{shape}: a wide tree, and up to {_shown(running)} sequences at once",
            "each sequence is verified with all its draft tokens, so the GPU is full at a few",
            chain,
        )
    elif topk is not None and topk > 1 and batched:
        yield _found(
            "tree",
            Severity.NOTE,
            f"{shape}: a tree",
            f"from about {_TREE_BATCH} sequences on a chain is usually faster",
            f"compare with {chain}",
        )
    else:
        yield _found("drafts", Severity.OK, shape)


def _check_graphs(spec: ServerInfo) -> Iterator[Finding]:
    if spec.on_cpu or spec.graphs_off:
        return  # no ceiling on a CPU; graphs that are off are check_server's
    ceiling, running = spec.graph_ceiling, spec.max_running
    if ceiling is None or running is None:
        return
    if ceiling >= running:
        yield _found("graph_ceiling", Severity.OK, f"CUDA graphs up to {ceiling} sequences")
        return
    old = "cuda_graph_max_bs" in spec.arguments
    flag = "--cuda-graph-max-bs" if old else "--cuda-graph-max-bs-decode"
    ranks = max(1, len(spec.ranks))
    yield _found(
        "graph_ceiling",
        Severity.WARNING,
        f"CUDA graphs end at {ceiling} sequences, and up to {running} run",
        "beyond it a step takes several times as long, and the backlog keeps it there "
        "(sglang#33483); specswitch sends no more than the ceiling",
        f"{flag} {_rounded_up(running, ranks)}, or --max-running-requests {ceiling}",
    )


def _rounded_up(total: int, ranks: int) -> int:
    """Of each rank, since the flag is one rank's."""
    return -(-total // ranks)


def _check_running(spec: ServerInfo) -> Iterator[Finding]:
    running = spec.arguments.count("max_running_requests")
    if running != _SILENT_RUNNING:
        if running is not None:
            yield _found("max_running", Severity.OK, f"{running} sequences run at once")
        return
    asked = spec.asked_for("--max-running-requests")
    if asked:
        yield _found("max_running", Severity.OK, f"{running} sequences run at once, as asked for")
        return
    silent = asked is False
    yield _found(
        "silent_48",
        Severity.WARNING if silent else Severity.NOTE,
        f"{running} sequences run at once, "
        + ("which nobody asked for" if silent else "which is what SGLang sets silently"),
        "with speculation SGLang sets 48 where --max-running-requests is not given "
        "(sglang#34290): the 49th request waits, and a crossover above 48 is never seen",
        "give --max-running-requests: about twice the crossover, with CUDA graphs up to it",
    )


def _check_draft_context(spec: ServerInfo) -> Iterator[Finding]:
    path = spec.arguments.text("speculative_draft_model_path")
    target = spec.context_length
    draft = None if spec.draft is None else spec.draft.count("max_position_embeddings")
    if draft is None and path is not None:
        draft = _KNOWN_DRAFT_CONTEXT.get(path)
    if draft is None or target is None:
        return
    if draft >= target:
        yield _found("draft_context", Severity.OK, f"the draft's context is {draft} tokens")
        return
    yield _found(
        "draft_context",
        Severity.WARNING,
        f"the draft was made for {draft} tokens, the server takes {target}",
        "beyond that drafts are seldom right: all of their cost, none of the gain",
        f"eligibility.max_spec_prompt_tokens = {draft} in specswitch.toml, or a draft with a "
        "longer context",
    )


def _check_thresholds(spec: ServerInfo) -> Iterator[Finding]:
    names = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    values = {name: spec.arguments.number(name) for name in names}
    low = {name: value for name, value in values.items() if value is not None and value < 1.0}
    if low:
        shown = ", ".join(f"{name} {value:g}" for name, value in low.items())
        flags = " ".join(f"--{name.replace('_', '-')} 1" for name in low)
        yield _found(
            "not_lossless",
            Severity.WARNING,
            shown,
            "below 1, drafts are kept that the model would not have chosen: answers differ from "
            "base's in kind, not by rounding",
            flags,
        )
    elif None not in values.values():
        yield _found("lossless", Severity.OK, "drafts are kept only where the model agrees")


def _check_adaptive(spec: ServerInfo) -> Iterator[Finding]:
    adaptive = spec.arguments.flag("speculative_adaptive")
    if adaptive is None:
        return  # a version without it
    if adaptive:
        yield _found(
            "adaptive",
            Severity.NOTE,
            "SGLang adapts its draft steps itself (--speculative-adaptive)",
            "this may be all that is needed; its batch-size slot of 64 is not reached with "
            "max_running_requests of 48",
            "let `specswitch calibrate` tell whether a second server still pays",
        )
        return
    reasons = _not_adaptive(spec)
    if reasons:
        yield _found(
            "adaptive_excluded",
            Severity.OK,
            f"SGLang's own --speculative-adaptive is not for this: {', '.join(reasons)}",
        )
        return
    yield _found(
        "adaptive_available",
        Severity.NOTE,
        "SGLang's own --speculative-adaptive would work here, and is off",
        "it changes the draft steps with the batch size inside one server: one copy of the "
        "weights, the whole KV cache",
        "try this first: one server with --speculative-adaptive and --max-running-requests above "
        "64; then compare with `specswitch bench`",
    )


def _not_adaptive(spec: ServerInfo) -> list[str]:
    """What excludes it, as adaptive_spec_params.py and lora_hook.py of SGLang have it."""
    arguments = spec.arguments
    reasons = []
    if spec.algorithm not in _ADAPTIVE_ALGORITHMS:
        reasons.append(f"{spec.algorithm} (EAGLE and EAGLE3 only)")
    topk = arguments.count("speculative_eagle_topk")
    if topk not in {None, 1}:
        reasons.append(f"topk {topk} (1 only)")
    excluding = {
        "enable_dp_attention": "attention data parallelism",
        "enable_multi_layer_eagle": "multi-layer EAGLE",
        "enable_two_batch_overlap": "two-batch overlap",
        "enable_pdmux": "PD multiplexing",
        "enable_hisparse": "HiSparse",
    }
    reasons += [words for name, words in excluding.items() if arguments.flag(name)]
    if _has_lora(spec):
        reasons.append("LoRA")
    return reasons


def _check_features(spec: ServerInfo) -> Iterator[Finding]:
    offered = {
        "enable_custom_logit_processor": "custom logit processors, ignored after the first token",
        "enable_return_hidden_states": "hidden states, three times as wide with EAGLE-3",
    }
    found = [words for name, words in offered.items() if spec.arguments.flag(name)]
    if spec.arguments.text("return_hidden_states_mode") is not None and len(found) < len(offered):
        found.append(offered["enable_return_hidden_states"])
    if found:
        yield _found(
            "unsafe_features",
            Severity.NOTE,
            f"offers {'; '.join(dict.fromkeys(found))}",
            "min_p and logit processors are ignored by verification, penalties and min_tokens bent",
            "leave the rules of [eligibility] at `base`, so that such requests go to base",
        )


def _has_lora(spec: ServerInfo) -> bool:
    arguments = spec.arguments
    paths = arguments.canonical("lora_paths")
    return bool(
        arguments.flag("enable_lora") or spec.adapters or paths not in {None, "null", "[]", "{}"}
    )


def _check_lora(spec: ServerInfo) -> Iterator[Finding]:
    if _has_lora(spec):
        yield _found(
            "lora",
            Severity.WARNING,
            "LoRA adapters and speculation on one server",
            "an adapter changes the model and not the draft: fewer drafts are kept, with the same "
            "cost",
            'eligibility.lora = "prefer" (the default) sends them to base; give base the adapters',
        )


def _check_attention_dp(spec: ServerInfo) -> Iterator[Finding]:
    if spec.arguments.flag("enable_dp_attention"):
        yield _found(
            "attention_dp",
            Severity.NOTE,
            "attention data parallelism: limits and CUDA graphs are of each rank",
            "a rank may be full while others are not, so the crossover depends on the balance",
            "calibrate with the load balancing that production has",
        )


def _check_metrics(spec: ServerInfo) -> Iterator[Finding]:
    metrics = spec.arguments.flag("enable_metrics")
    if metrics is False:
        yield _found(
            "metrics_off",
            Severity.WARNING,
            "started without --enable-metrics",
            "without its counters specswitch cannot see the acceptance length fall",
            "--enable-metrics",
        )
    elif metrics:
        yield _found("metrics", Severity.OK, "counters are on")


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
