"""What an engine tells of itself: /server_info, /v1/loads, /metrics and the like, as SGLang 0.5.23.

The fields that a router, a doctor or a bench client reads, under their names, out of the several
hundred that SGLang prints. Unlike SGLang's, these figures are never stale.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from proxy.core.words import UpstreamName
from proxy.sim.engine import MAX_PREFILL_TOKENS, Load
from proxy.sim.generation import Reply
from proxy.sim.physics import Profile
from proxy.sim.wire import Answer, json_answer

VERSION: Final = "0.5.23"

_WEIGHT_GB: Final = 16.0
"""An 8B model in 16 bits."""

_KV_GB_PER_TOKEN: Final = 131072 / 1e9
"""128 KiB for one token of an 8B model (docs/model.md, "Room for keys and values")."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What does not change about an engine while it runs."""

    name: UpstreamName
    profile: Profile
    model: str
    host: str
    port: int
    context_length: int

    @property
    def speculative(self) -> bool:
        """Whether it verifies drafts."""
        return self.name is UpstreamName.SPEC


@dataclass(slots=True)
class _Totals:
    """Requests that ended, with or without a stream."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Tally:
    """The counters of SGLang's HTTP process, which it keeps at the end of each sequence."""

    by_stream: dict[bool, _Totals] = field(default_factory=dict)
    verify_rounds: int = 0
    aborted: int = 0

    def ended(self, reply: Reply, *, stream: bool) -> None:
        """A sequence is complete."""
        totals = self.by_stream.setdefault(stream, _Totals())
        totals.requests += 1
        totals.prompt_tokens += reply.wanted.prompt_tokens
        totals.output_tokens += reply.produced
        self.verify_rounds += sum(reply.rounds)

    def left(self, reply: Reply, *, stream: bool) -> None:
        """Its client is gone. SGLang counts one that was running as a request too."""
        self.aborted += 1
        if reply.admitted_at is not None:
            self.ended(reply, stream=stream)


def models(card: Card, now: float) -> Answer:
    """GET /v1/models."""
    return json_answer({"object": "list", "data": [_model(card, now)]})


def model(card: Card, name: str, now: float) -> Answer:
    """GET /v1/models/{id}."""
    if name == card.model:
        return json_answer(_model(card, now))
    error = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return json_answer({"error": error}, 404)


def _model(card: Card, now: float) -> dict[str, object]:
    return {
        "id": card.model,
        "object": "model",
        "created": int(now),
        "owned_by": "sglang",
        "root": card.model,
        "parent": None,
        "max_model_len": card.context_length,
    }


def model_info(card: Card) -> Answer:
    """GET /model_info."""
    return json_answer(
        {
            "model_path": card.model,
            "served_model_name": card.model,
            "tokenizer_path": card.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "dummy",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
        }
    )


def server_info(card: Card, load: Load) -> Answer:
    """GET /server_info."""
    args = _server_args(card, load)
    return json_answer(
        {
            **args,
            "launch_command": f"specswitch engines --profile {card.profile.name}",
            "status": "ready",
            "max_total_num_tokens": load.limits.max_total_tokens,
            "max_req_input_len": card.context_length,
            "startup_time": {},
            "kv_events": None,
            "internal_states": [{**args, **_internal_state(card, load)}],
            "version": VERSION,
            "frontend": "python",
        }
    )


def _server_args(card: Card, load: Load) -> dict[str, object]:
    running = load.limits.max_running
    return {
        "model_path": card.model,
        "tokenizer_path": card.model,
        "served_model_name": card.model,
        "host": card.host,
        "port": card.port,
        "revision": None,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "context_length": card.context_length,
        "mem_fraction_static": None,
        "max_running_requests": running,
        "max_queued_requests": load.limits.max_queued,
        "max_total_tokens": load.limits.max_total_tokens,
        "max_prefill_tokens": MAX_PREFILL_TOKENS,
        "chunked_prefill_size": MAX_PREFILL_TOKENS,
        "page_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "device": "cuda",
        "attention_backend": "simulated",
        "stream_interval": 1,
        "disable_radix_cache": True,
        "disable_cuda_graph": False,
        "enable_metrics": True,
        "enable_cache_report": False,
        # The cost curves have no jump, which is what a graph for every batch size gives.
        "cuda_graph_max_bs_decode": running,
        "cuda_graph_config": {"decode": {"backend": "full", "max_bs": running}},
        "load_balance_method": "round_robin",
        "api_key": None,
        "admin_api_key": None,
        **_speculative_args(card),
    }


def _speculative_args(card: Card) -> dict[str, object]:
    profile = card.profile if card.speculative else None
    return {
        "speculative_algorithm": profile and "EAGLE3",
        "speculative_draft_model_path": profile and f"{card.model}-draft",
        "speculative_num_steps": profile and profile.draft_steps,
        "speculative_eagle_topk": profile and profile.draft_topk,
        "speculative_num_draft_tokens": profile and profile.draft_tokens,
        "speculative_adaptive": False,
    }


def _internal_state(card: Card, load: Load) -> dict[str, object]:
    state: dict[str, object] = {
        "effective_max_running_requests_per_dp": load.limits.max_running,
        "last_gen_throughput": load.output_rate,
        "memory_usage": {
            "weight": _WEIGHT_GB,
            "kvcache": load.limits.max_total_tokens * _KV_GB_PER_TOKEN,
            "token_capacity": load.limits.max_total_tokens,
            "graph": {},
        },
    }
    if card.speculative:
        state["avg_spec_accept_length"] = load.acceptance_length or 1.0
    return state


def loads(card: Card, load: Load, now: float) -> Answer:
    """GET /v1/loads."""
    counters = load.counters
    rank: dict[str, object] = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": load.used_tokens,
        "num_total_tokens": load.used_tokens + load.waiting_tokens,
        "num_active_tokens": load.used_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": load.limits.max_total_tokens,
        "max_running_requests": load.limits.max_running,
        "token_usage": load.token_usage,
        "gen_throughput": round(load.output_rate, 2),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": counters.prefilled_tokens,
        "total_prefill_busy_us": int(counters.prefill_seconds * 1e6),
        "decode_moments": counters.decode_moments if counters.decode_moments[0] else None,
        "memory": {
            "weight_gb": _WEIGHT_GB,
            "kv_cache_gb": round(load.limits.max_total_tokens * _KV_GB_PER_TOKEN, 3),
            "graph_gb": 0.0,
            "token_capacity": load.limits.max_total_tokens,
        },
    }
    if card.speculative:
        rank["speculative"] = {
            "accept_length": load.acceptance_length or 0.0,
            "accept_rate": _accept_rate(card, load),
        }
    rank["disaggregation"] = {
        "mode": "null",
        "prefill_bootstrap_queue_reqs": 0,
        "prefill_inflight_queue_reqs": 0,
        "decode_prealloc_queue_reqs": 0,
        "decode_transfer_queue_reqs": 0,
        "decode_retracted_queue_reqs": 0,
        "kv_transfer_speed_gb_s": 0.0,
        "kv_transfer_latency_ms": 0.0,
    }
    rank["queues"] = {
        "waiting": load.waiting,
        "grammar": 0,
        "paused": 0,
        "retracted": 0,
        "prealloc_ready": 0,
    }
    return json_answer(
        {
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
            "version": VERSION,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": [rank],
        }
    )


def _accept_rate(card: Card, load: Load) -> float:
    """Accepted drafts over proposed ones, as SGLang counts proposals."""
    proposed = load.counters.verify_rounds * (card.profile.draft_tokens - 1)
    return load.counters.accepted_drafts / proposed if proposed else 0.0


def metrics(card: Card, load: Load, tally: Tally) -> Answer:
    """GET /metrics."""
    lines = [*_gauge_lines(card, load), *_counter_lines(card, tally), ""]
    return Answer(200, "\n".join(lines).encode(), METRICS_TYPE)


def _gauge_lines(card: Card, load: Load) -> Iterator[str]:
    drafts = card.profile if card.speculative else None
    used = load.used_tokens
    gauges: Mapping[str, tuple[str, float]] = {
        "max_total_num_tokens": ("Room in the KV cache.", load.limits.max_total_tokens),
        "context_len": ("Maximum context length.", card.context_length),
        "num_running_reqs": ("The number of running requests.", load.running),
        "num_queue_reqs": ("The number of requests in the waiting queue.", load.waiting),
        "num_retracted_reqs": ("The number of retracted requests.", 0),
        "num_paused_reqs": ("The number of paused requests.", 0),
        "num_used_tokens": ("The number of used tokens.", used),
        "kv_available_tokens": ("Free tokens.", load.limits.max_total_tokens - used),
        "token_usage": ("The token usage.", load.token_usage),
        "gen_throughput": ("The generation throughput (token/s).", load.output_rate),
        "cache_hit_rate": ("The prefix cache hit rate.", 0),
        "utilization": ("The utilization.", 0),
        "is_cuda_graph": ("Whether the batch runs a CUDA graph.", 1),
        "spec_accept_length": ("Mean acceptance length.", load.acceptance_length or 0),
        "spec_accept_rate": ("Accepted over proposed drafts.", _accept_rate(card, load)),
        "spec_num_steps": ("Draft steps.", drafts.draft_steps if drafts else 0),
        "spec_num_draft_tokens": ("Draft tokens.", drafts.draft_tokens if drafts else 0),
    }
    labels = (
        f'engine_type="unified",model_name="{card.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    for name, (meaning, value) in gauges.items():
        yield f"# HELP sglang:{name} {meaning}"
        yield f"# TYPE sglang:{name} gauge"
        yield f"sglang:{name}{{{labels}}} {float(value)}"


def _counter_lines(card: Card, tally: Tally) -> Iterator[str]:
    """As in SGLang, a counter that has counted nothing yet is not there."""
    ended = tally.by_stream.items()
    streamed = {True: {"is_streaming": "true"}, False: {"is_streaming": "false"}}
    counters: Mapping[str, tuple[str, list[tuple[dict[str, str], int]]]] = {
        "prompt_tokens_total": (
            "Number of prefill tokens processed.",
            [(streamed[stream], totals.prompt_tokens) for stream, totals in ended],
        ),
        "generation_tokens_total": (
            "Number of generation tokens processed.",
            [(streamed[stream], totals.output_tokens) for stream, totals in ended],
        ),
        "num_requests_total": (
            "Number of requests processed.",
            [(streamed[stream], totals.requests) for stream, totals in ended],
        ),
        "num_aborted_requests_total": ("Number of requests aborted.", [({}, tally.aborted)]),
        "spec_verify_calls_total": (
            "Number of speculative decoding verification calls.",
            [({}, tally.verify_rounds)],
        ),
    }
    for name, (meaning, samples) in counters.items():
        counted = [(labels, value) for labels, value in samples if value]
        if counted:
            yield f"# HELP sglang:{name} {meaning}"
            yield f"# TYPE sglang:{name} counter"
        for labels, value in counted:
            own = {"engine_type": "unified", **labels, "model_name": card.model}
            listed = ",".join(f'{key}="{text}"' for key, text in own.items())
            yield f"sglang:{name}{{{listed}}} {float(value)}"
