"""The allow-list: every path that is served, and what kind of work it is.

What is not here is answered 404 and never reaches an engine. Of SGLang's own administration what
both servers can do alike is here, for who presents the key for it; to all others it is not there.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from proxy.core.peek import Dialect


class Kind(StrEnum):
    """What a request to a path is to us."""

    GENERATION = "generation"  # load: routed by policy, counted in sequences
    STATE = "state"  # touches what lives in one server: base only
    MODEL = "model"  # any server can answer: base first; not load
    OWN = "own"  # answered here
    PAIR = "pair"  # answered here, of what both servers say; not load
    ADMINISTRATION = "administration"  # done by both servers, for who has the key for it
    WITHHELD = "withheld"  # administration that a pair cannot take; refused to who has that key


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the allow-list."""

    template: str
    """The path as it appears in metrics and logs."""
    kind: Kind
    methods: tuple[str, ...]
    dialect: Dialect | None = None
    """How its body and its streams are read; None: not at all."""
    holds_head: bool = False
    """Whether the head of a stream waits for the first event, which may be a refusal.

    Only where SGLang itself sends the head with the first token, so that nothing is delayed.
    """
    needs_key: bool = True
    stream_dialect: Dialect | None = None
    """How its streams are read where its body is not."""
    tunnel: bool = False
    """Whether it is a WebSocket: a GET that asks for an upgrade, and then bytes both ways."""
    reserved: bool = False
    """Whether it is there for some only: where it is configured, or for who presents a key."""

    @property
    def is_errand(self) -> bool:
        """Whether its answer is ours, and somebody has to be asked for it."""
        # A dialect first: it is what most requests have, and costs least to look at.
        return self.dialect is None and self.kind in _ERRANDS

    @property
    def by_admin(self) -> bool:
        """Whether it is there for who presents the key for administration, and needs no other."""
        return self.reserved and self.kind is not Kind.PAIR


_ERRANDS = (Kind.PAIR, Kind.ADMINISTRATION)
_POST = ("POST",)
_POST_OR_PUT = ("POST", "PUT")
"""SGLang takes both for the same on four of its paths."""
_GET = ("GET", "HEAD")
_BOTH = ("GET", "POST")
"""What does something, by a GET too: nobody asks for its head alone."""


def _generation(
    path: str,
    dialect: Dialect,
    *,
    methods: tuple[str, ...] = _POST,
    holds_head: bool = False,
) -> Endpoint:
    return Endpoint(path, Kind.GENERATION, methods, dialect, holds_head)


ENDPOINTS: tuple[Endpoint, ...] = (
    _generation("/v1/chat/completions", Dialect.OPENAI_CHAT, holds_head=True),
    _generation("/v1/completions", Dialect.OPENAI_COMPLETIONS, holds_head=True),
    _generation("/v1/responses", Dialect.OPENAI_RESPONSES),
    _generation("/v1/messages", Dialect.ANTHROPIC),
    _generation("/generate", Dialect.GENERATE, methods=_POST_OR_PUT),
    _generation("/api/chat", Dialect.OLLAMA_CHAT),
    _generation("/api/generate", Dialect.OLLAMA_GENERATE),
    _generation("/invocations", Dialect.OPENAI_CHAT),
    Endpoint("/open_session", Kind.STATE, _BOTH),
    Endpoint("/close_session", Kind.STATE, _BOTH),
    Endpoint("/v1/responses/{id}", Kind.STATE, _GET),
    Endpoint("/v1/responses/{id}/cancel", Kind.STATE, _POST),
    *(
        Endpoint(path, Kind.MODEL, _POST)
        for path in (
            "/v1/embeddings",
            "/v1/score",
            "/v1/decisions",
            "/v1/classify",
            "/v1/systemone",
            "/tokenize",
            "/detokenize",
            "/v1/tokenize",
            "/v1/detokenize",
            "/v1/messages/count_tokens",
            "/parse_function_call",
            "/separate_reasoning",
            "/api/show",
        )
    ),
    *(Endpoint(path, Kind.MODEL, _POST_OR_PUT) for path in ("/encode", "/classify", "/v1/rerank")),
    Endpoint("/v1/audio/transcriptions", Kind.MODEL, _POST, stream_dialect=Dialect.OPENAI_CHAT),
    Endpoint("/v1/realtime", Kind.MODEL, ("GET",), tunnel=True),
    *(
        Endpoint(path, Kind.MODEL, _GET)
        for path in (
            "/v1/models",
            "/v1/models/{id}",
            "/api/tags",
            "/model_info",
            "/get_model_info",
        )
    ),
    *(
        Endpoint(path, Kind.OWN, _GET, needs_key=False)
        for path in ("/livez", "/readyz", "/health", "/health_generate", "/ready", "/ping")
    ),
    Endpoint("/server_info", Kind.PAIR, _GET),
    Endpoint("/get_server_info", Kind.PAIR, _GET),
    Endpoint("/v1/loads", Kind.PAIR, _GET),
    Endpoint("/metrics", Kind.PAIR, _GET, reserved=True),
    *(
        Endpoint(path, Kind.ADMINISTRATION, methods, reserved=True)
        for path, methods in (
            ("/flush_cache", _BOTH),
            ("/abort_request", _POST),
            ("/load_lora_adapter", _POST),
            ("/unload_lora_adapter", _POST),
            ("/pause_generation", _POST),
            ("/continue_generation", _POST),
            ("/configure_logging", _BOTH),
            ("/start_profile", _BOTH),
            ("/stop_profile", _BOTH),
        )
    ),
    *(
        Endpoint(path, Kind.WITHHELD, methods, reserved=True)
        for path, methods in (
            ("/update_weights_from_disk", _POST),
            ("/update_weights_from_tensor", _POST),
            ("/update_weights_from_distributed", _POST),
            ("/update_weights_from_ipc", _POST),
            ("/begin_weight_update", _POST),
            ("/end_weight_update", _POST),
            ("/init_weights_update_group", _POST),
            ("/destroy_weights_update_group", _POST),
            ("/init_weights_send_group_for_remote_instance", _POST),
            ("/send_weights_to_remote_instance", _POST),
            ("/update_weight_version", _POST),
            ("/get_weights_by_name", _BOTH),
            ("/release_memory_occupation", _BOTH),
            ("/resume_memory_occupation", _BOTH),
            ("/weights_checker", _BOTH),
        )
    ),
)

_EXACT = {e.template.encode(): e for e in ENDPOINTS if "{" not in e.template}
_MODEL = next(e for e in ENDPOINTS if e.template == "/v1/models/{id}")
_RESPONSE = next(e for e in ENDPOINTS if e.template == "/v1/responses/{id}")
_CANCEL = next(e for e in ENDPOINTS if e.template == "/v1/responses/{id}/cancel")

# Decoded ids: a model id may be a path ("org/model", or "/models/model" where the engine was given
# no other name), and a path must not climb.
_MODEL_ID = re.compile(rb"/?[A-Za-z0-9._~:@+=-]+(/[A-Za-z0-9._~:@+=-]+)*\Z")
# A client may choose the id of a response, and SGLang asks only that it begin with `resp_`. One
# segment, then, of all but what would make another path of it for who reads it otherwise.
_RESPONSE_ID = re.compile(rb"[^\x00-\x1f\x7f/\\?#%;]+\Z")


def find(path: bytes) -> Endpoint | None:
    """Return the row for `path` (without its query), None if it is not served."""
    found = _EXACT.get(path)
    if found is not None:
        return found
    if path.startswith(b"/v1/models/"):
        return _MODEL if _is_model_id(path[11:]) else None
    if path.startswith(b"/v1/responses/"):
        name, slash, rest = path[14:].partition(b"/")
        if not _is_response_id(name):
            return None
        if not slash:
            return _RESPONSE
        return _CANCEL if rest == b"cancel" else None
    return None


def _is_model_id(encoded: bytes) -> bool:
    name = unquote_to_bytes(encoded)
    climbs = any(_is_dots(part) for part in name.removeprefix(b"/").split(b"/"))
    return _MODEL_ID.match(name) is not None and not climbs and not encoded.startswith(b"/")


def _is_response_id(encoded: bytes) -> bool:
    name = unquote_to_bytes(encoded)
    return _RESPONSE_ID.match(name) is not None and not _is_dots(name) and encoded.isascii()


def _is_dots(part: bytes) -> bool:
    return not part.strip(b".")
