"""Two SGLang servers as doctor reads them: a good pair on one GPU, and any change to it."""

from proxy.core.fields import Fields
from proxy.core.words import UpstreamName
from proxy.tools.doctor.server_info import ServerInfo

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

_COMMON: dict[str, object] = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_path": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_mode": "auto",
    "served_model_name": "llama",
    "load_format": "auto",
    "revision": None,
    "dtype": "bfloat16",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "context_length": None,
    "device": "cuda",
    "base_gpu_id": 0,
    "gpu_id_step": 1,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "page_size": 1,
    "chunked_prefill_size": 8192,
    "disable_radix_cache": False,
    "sleep_on_idle": True,
    "enable_metrics": True,
    "grammar_backend": "xgrammar",
    "chat_template": None,
    "hf_chat_template_name": None,
    "completion_template": None,
    "default_chat_template_kwargs": None,
    "reasoning_parser": None,
    "tool_call_parser": "llama3",
    "weight_version": "default",
    "sampling_defaults": "model",
    "preferred_sampling_params": None,
    "json_model_override_args": "{}",
    "enable_deterministic_inference": False,
    "allow_auto_truncate": False,
    "stream_response_default_include_usage": False,
    "incremental_streaming_output": False,
    "enable_strict_thinking": False,
    "strip_thinking_cache": False,
    "stream_interval": 1,
    "enable_cache_report": False,
    "enable_response_store": False,
    "disable_cuda_graph": False,
    "disable_decode_cuda_graph": False,
    "enable_lora": None,
    "lora_paths": None,
    "api_key": None,
    "version": "0.5.23",
}
_OWN: dict[UpstreamName, dict[str, object]] = {
    SPEC: {
        "port": 30001,
        "mem_fraction_static": 0.35,
        "max_running_requests": 16,
        "launch_command": "--model-path m --mem-fraction-static 0.35 --max-running-requests 16",
        "startup_time": {"tokenizer_e2e": 31.5},
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_adaptive": False,
    },
    BASE: {
        "port": 30000,
        "mem_fraction_static": 0.75,
        "max_running_requests": 256,
        "launch_command": "--model-path=m --mem-fraction-static=0.75",
        "startup_time": {"tokenizer_e2e": 28.25},
        "speculative_algorithm": None,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_adaptive": False,
    },
}
_KV_TOKENS = {SPEC: 90_000, BASE: 250_000}
_RUNNING = {SPEC: 16, BASE: 256}

_READ: dict[str, object] = {
    "url": None,
    "known": True,
    "context": 32768,
    "adapters": (),
    "generation": {},
    "draft": None,
}

ABSENT = object()
"""As a value: the server does not have that field."""


def arguments(name: UpstreamName, **changed: object) -> dict[str, object]:
    """/server_info of a good server, less what is ABSENT."""
    fields = {**_COMMON, **_OWN[name], "internal_states": [rank(name)], **changed}
    return {field: value for field, value in fields.items() if value is not ABSENT}


def rank(name: UpstreamName, **changed: object) -> dict[str, object]:
    """One of its internal_states."""
    fields: dict[str, object] = {
        "effective_max_running_requests_per_dp": _RUNNING[name],
        "decode_cuda_graph_bs": [1, 2, 4, 8, _RUNNING[name]],
        "memory_usage": {"token_capacity": _KV_TOKENS[name]},
        **changed,
    }
    return {field: value for field, value in fields.items() if value is not ABSENT}


def server(name: UpstreamName, **changed: object) -> ServerInfo:
    """A good server of the pair, but for what is changed of its arguments.

    Not arguments, but what else is read of it: `url`, `known` (False: no /server_info), `context`
    (tokens, of its card), `adapters` (names), `generation` and `draft` (fields of those files).
    """
    own = {field: changed.pop(field, default) for field, default in _READ.items()}
    shown = arguments(name, **changed) if own["known"] else {}
    served = shown.get("served_model_name", "llama")
    cards: list[object] = [{"id": served, "parent": None, "max_model_len": own["context"]}]
    if isinstance(own["adapters"], tuple):
        cards += [{"id": adapter, "parent": served} for adapter in own["adapters"]]
    return ServerInfo(
        name=name,
        url=str(own["url"] or f"http://127.0.0.1:{_OWN[name]['port']}"),
        known=bool(own["known"]),
        arguments=Fields(shown),
        cards=[Fields(card) for card in cards],
        loads=[Fields({"num_running_reqs": 0})],
        generation=Fields(own["generation"]),
        draft=None if own["draft"] is None else Fields(own["draft"]),
    )
