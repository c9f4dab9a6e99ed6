"""The allow-list, by enumeration: all that is served, and much that is not."""

import pytest

from proxy.core.endpoints import ENDPOINTS, Endpoint, Kind, find
from proxy.core.peek import Dialect

POST, GET, BOTH = ("POST",), ("GET", "HEAD"), ("GET", "POST")
POST_OR_PUT = ("POST", "PUT")

GENERATION = {
    "/v1/chat/completions": Dialect.OPENAI_CHAT,
    "/v1/completions": Dialect.OPENAI_COMPLETIONS,
    "/v1/responses": Dialect.OPENAI_RESPONSES,
    "/v1/messages": Dialect.ANTHROPIC,
    "/generate": Dialect.GENERATE,
    "/api/chat": Dialect.OLLAMA_CHAT,
    "/api/generate": Dialect.OLLAMA_GENERATE,
    "/invocations": Dialect.OPENAI_CHAT,
}
MODEL_POSTS = [
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
]
AUDIO = "/v1/audio/transcriptions"
MODEL_POSTS_OR_PUTS = ["/v1/rerank", "/classify", "/encode"]
MODEL_GETS = ["/v1/models", "/api/tags", "/model_info", "/get_model_info"]
PAIR = ["/server_info", "/get_server_info", "/v1/loads", "/metrics"]
ADMINISTRATION = {
    "/flush_cache": BOTH,
    "/abort_request": POST,
    "/load_lora_adapter": POST,
    "/unload_lora_adapter": POST,
    "/pause_generation": POST,
    "/continue_generation": POST,
    "/configure_logging": BOTH,
    "/start_profile": BOTH,
    "/stop_profile": BOTH,
}
WITHHELD = {
    "/update_weights_from_disk": POST,
    "/update_weights_from_tensor": POST,
    "/update_weights_from_distributed": POST,
    "/update_weights_from_ipc": POST,
    "/begin_weight_update": POST,
    "/end_weight_update": POST,
    "/init_weights_update_group": POST,
    "/destroy_weights_update_group": POST,
    "/init_weights_send_group_for_remote_instance": POST,
    "/send_weights_to_remote_instance": POST,
    "/update_weight_version": POST,
    "/get_weights_by_name": BOTH,
    "/release_memory_occupation": BOTH,
    "/resume_memory_occupation": BOTH,
    "/weights_checker": BOTH,
}
OWN = ["/livez", "/readyz", "/health", "/health_generate", "/ready", "/ping"]
HOLD_THE_HEAD = {"/v1/chat/completions", "/v1/completions"}

NOT_SERVED = [
    "",
    "/",
    "*",
    "v1/models",
    # SGLang's administration, but what both servers can do alike
    "/update_weights",
    "/set_internal_state",
    "/load_lora_adapter_from_tensors",
    "/freeze_gc",
    "/flush_cache/",
    "/metrics/",
    "/vertex_generate",
    "/docs",
    "/openapi.json",
    "/v1/files",
    # another way to write what is served
    "/v1/chat/completions/",
    "/v1//chat/completions",
    "//v1/chat/completions",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions#top",
    "/v1/chat/completions%00",
    "/v1/chat/completions\0",
    "/v1/chat%2Fcompletions",
    "/v1/chat/%63ompletions",
    "/V1/chat/completions",
    "/v1/../v1/chat/completions",
    "/v1/./chat/completions",
    "/v1/chat/completions/..",
    "/generate/../flush_cache",
    "/livez/",
    "/livez/../flush_cache",
    "\\generate",
    # below the two that take an id
    "/v1/models/",
    "/v1/models//",
    "/v1/models//org",
    "/v1/models/org/",
    "/v1/models/org//model",
    "/v1/models/.",
    "/v1/models/..",
    "/v1/models/...",
    "/v1/models/../../flush_cache",
    "/v1/models/a/../../../flush_cache",
    "/v1/models/%2e%2e/%2e%2e/flush_cache",
    "/v1/models/%2E%2E%2F%2E%2E%2Fflush_cache",
    "/v1/models/%2F..%2Fflush_cache",
    "/v1/models/%2F%2Forg",
    "/v1/models/%2F",
    "/v1/models/..%5Cflush_cache",
    "/v1/models/%252e%252e/flush_cache",
    "/v1/models/a;b",
    "/v1/models/a%3Bb",
    "/v1/models/a%00",
    "/v1/models/a\0",
    "/v1/models/a%0A",
    "/v1/models/a\n",
    "/v1/models/a%3Fb",
    "/v1/models/a%23b",
    "/v1/models/a%20b",
    "/v1/models/%zz",
    "/v1/models/%ff",
    "/v1/modelsx",
    "/v1/responses/",
    "/v1/responses//",
    "/v1/responses/..",
    "/v1/responses/resp_1/",
    "/v1/responses/resp_1/cancel/",
    "/v1/responses/resp_1//cancel",
    "/v1/responses/resp_1/cancel;a",
    "/v1/responses/resp_1/input_items",
    "/v1/responses/resp_1/../../flush_cache",
    "/v1/responses//cancel",
    "/v1/responses/.",
    "/v1/responses/...",
    "/v1/responses/%2e",
    "/v1/responses/%2E%2E",
    "/v1/responses/../cancel",
    "/v1/responses/%2e%2e/cancel",
    "/v1/responses/resp_1\n",
    "/v1/responses/resp_1%0A",
    "/v1/responses/resp_1%00",
    "/v1/responses/resp_1%7F",
    "/v1/responses/resp_1%2Fcancel",
    "/v1/responses/..%2Fflush_cache",
    "/v1/responses/..%5Cflush_cache",
    "/v1/responses/resp\\1",
    "/v1/responses/%252e%252e",
    "/v1/responses/resp_%2525",
    "/v1/responses/resp_%zz",
    "/v1/responses/resp_1%3Fa",
    "/v1/responses/resp_1%23a",
    "/v1/responses/resp_1#a",
    "/v1/responses/resp_1;a",
    "/v1/responses/resp_1%3Ba",
    "/v1/responses/resp_é",
]


@pytest.mark.parametrize(("path", "dialect"), GENERATION.items())
def test_generation(path: str, dialect: Dialect) -> None:
    """Routed by policy, read in its dialect; POST only, but where SGLang takes PUT for the same."""
    found = find(path.encode())

    assert found is not None
    methods = POST_OR_PUT if path == "/generate" else POST
    assert (found.template, found.kind, found.methods) == (path, Kind.GENERATION, methods)
    assert found.dialect is dialect
    assert found.needs_key


@pytest.mark.parametrize(
    ("path", "template", "methods"),
    [
        ("/open_session", "/open_session", BOTH),
        ("/close_session", "/close_session", BOTH),
        ("/v1/responses/resp_0aZ-9", "/v1/responses/{id}", GET),
        ("/v1/responses/resp_0aZ-9/cancel", "/v1/responses/{id}/cancel", POST),
    ],
)
def test_what_lives_in_one_server(path: str, template: str, methods: tuple[str, ...]) -> None:
    """Sessions and stored responses."""
    found = find(path.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == (template, Kind.STATE, methods)
    assert found.dialect is None


@pytest.mark.parametrize(
    "name",
    ["resp%5F1", "resp_my.id", "resp_a:b@c~d+e=f", "resp_(1)!$&'*,", "resp_a%20b", "resp_%C3%A9"],
)
def test_a_response_has_whatever_id_its_client_chose(name: str) -> None:
    """SGLang takes any; one segment, in whatever way it is written."""
    for end, template in (("", "/v1/responses/{id}"), ("/cancel", "/v1/responses/{id}/cancel")):
        found = find(f"/v1/responses/{name}{end}".encode())
        assert found is not None
        assert found.template == template


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        *((path, POST) for path in MODEL_POSTS),
        *((path, POST_OR_PUT) for path in MODEL_POSTS_OR_PUTS),
        *((path, GET) for path in MODEL_GETS),
    ],
)
def test_model_paths(path: str, methods: tuple[str, ...]) -> None:
    """Any server can answer them, and their bodies are not looked into."""
    found = find(path.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == (path, Kind.MODEL, methods)
    assert found.dialect is None
    assert found.needs_key


@pytest.mark.parametrize(
    "name",
    [
        "m",
        "org/model",
        "org%2Fmodel",
        "org/model-7B_v0.1",
        "org/model:tuned",
        "a@b~c+d=e",
        "%6d",
        ".hidden",
        "%2Fmodels%2Fllama",
    ],
)
def test_one_model(name: str) -> None:
    """By its id, which may hold slashes, begin with an encoded one, and be encoded altogether."""
    found = find(b"/v1/models/" + name.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == ("/v1/models/{id}", Kind.MODEL, GET)


@pytest.mark.parametrize("path", OWN)
def test_health_paths(path: str) -> None:
    """Answered here, without a key, as a GET or a HEAD."""
    found = find(path.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == (path, Kind.OWN, GET)
    assert not found.needs_key


@pytest.mark.parametrize("path", PAIR)
def test_pages_of_the_pair(path: str) -> None:
    """Put together here; metrics only where they are configured."""
    found = find(path.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == (path, Kind.PAIR, GET)
    assert found.is_errand
    assert found.needs_key
    assert found.reserved is (path == "/metrics")
    assert not found.by_admin


@pytest.mark.parametrize(
    ("path", "kind", "methods"),
    [
        *((path, Kind.ADMINISTRATION, methods) for path, methods in ADMINISTRATION.items()),
        *((path, Kind.WITHHELD, methods) for path, methods in WITHHELD.items()),
    ],
)
def test_administration(path: str, kind: Kind, methods: tuple[str, ...]) -> None:
    """For who presents the key for it; with SGLang's methods, which are without HEAD."""
    found = find(path.encode())

    assert found is not None
    assert (found.template, found.kind, found.methods) == (path, kind, methods)
    assert found.is_errand is (kind is Kind.ADMINISTRATION)
    assert found.reserved
    assert found.by_admin


@pytest.mark.parametrize("path", NOT_SERVED)
def test_everything_else_is_not_served(path: str) -> None:
    """No administration, and no second spelling of anything."""
    assert find(path.encode()) is None


def test_every_row_was_looked_at() -> None:
    """The tables above and the allow-list are the same paths, each once."""
    with_ids = {"/v1/models/{id}", "/v1/responses/{id}", "/v1/responses/{id}/cancel"}
    sessions = {"/open_session", "/close_session"}
    ours = {*OWN, *PAIR, *ADMINISTRATION, *WITHHELD}
    posts = {*GENERATION, *MODEL_POSTS, *MODEL_POSTS_OR_PUTS}
    listed = {*posts, *MODEL_GETS, *ours, *with_ids, *sessions, AUDIO, "/v1/realtime"}

    assert {row.template for row in ENDPOINTS} == listed
    assert len(ENDPOINTS) == len(listed)


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: str(row.template))
def test_head_goes_where_get_goes(row: Endpoint) -> None:
    """And nowhere else: a tunnel has no head that could be asked for alone.

    Nor is what does something done by asking for a head.
    """
    asks = "GET" in row.methods and "POST" not in row.methods and not row.tunnel
    assert not (asks and row.by_admin)
    assert ("HEAD" in row.methods) is asks


def test_heads_are_held_where_the_engine_holds_them() -> None:
    """Only on chat and completions does the head come with the first event anyway."""
    assert {row.template for row in ENDPOINTS if row.holds_head} == HOLD_THE_HEAD


def test_streams_of_audio_are_read_and_its_bodies_are_not() -> None:
    """A form is no JSON; what SGLang streams for it has the events of chat."""
    found = find(AUDIO.encode())

    assert found is not None
    assert (found.kind, found.methods, found.dialect) == (Kind.MODEL, POST, None)
    assert {row.template: row.stream_dialect for row in ENDPOINTS if row.stream_dialect} == {
        AUDIO: Dialect.OPENAI_CHAT
    }


def test_the_one_tunnel() -> None:
    """A WebSocket is a GET, and nothing but it is one."""
    found = find(b"/v1/realtime")

    assert found is not None
    assert (found.kind, found.methods, found.dialect) == (Kind.MODEL, ("GET",), None)
    assert [row.template for row in ENDPOINTS if row.tunnel] == ["/v1/realtime"]
