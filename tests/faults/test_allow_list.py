"""The allow-list, proven by enumeration: every path x every method x with a key and without.

What is not meant to be served is refused here and never reaches an engine: the engines' own logs
are what is looked at. The tables below are written by hand from the contract and from SGLang's
source, and not derived from the code that they judge.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from proxy.core.endpoints import ENDPOINTS
from tests.harness.client import RawClient, Response
from tests.harness.running import Rig, rig

KEY = "sk-right"
WITH_KEY = {"authorization": f"Bearer {KEY}"}
GET, POST, BOTH = ("GET", "HEAD"), ("POST",), ("POST", "PUT")
SESSION = ("GET", "POST")

SERVED: dict[str, tuple[str, ...]] = {
    # generation
    "/v1/chat/completions": POST,
    "/v1/completions": POST,
    "/v1/responses": POST,
    "/v1/messages": POST,
    "/generate": BOTH,
    "/api/chat": POST,
    "/api/generate": POST,
    "/invocations": POST,
    # what lives in base
    "/open_session": SESSION,
    "/close_session": SESSION,
    "/v1/responses/resp_1": GET,
    "/v1/responses/resp_my.id%20%C3%A9": GET,
    "/v1/responses/resp_1/cancel": POST,
    # model paths
    "/v1/embeddings": POST,
    "/v1/rerank": BOTH,
    "/v1/score": POST,
    "/v1/classify": POST,
    "/classify": BOTH,
    "/encode": BOTH,
    "/tokenize": POST,
    "/detokenize": POST,
    "/v1/tokenize": POST,
    "/v1/detokenize": POST,
    "/v1/messages/count_tokens": POST,
    "/v1/audio/transcriptions": POST,
    "/v1/decisions": POST,
    "/v1/systemone": POST,
    "/parse_function_call": POST,
    "/separate_reasoning": POST,
    "/api/show": POST,
    "/v1/models": GET,
    "/v1/models/tiny": GET,
    "/v1/models/org/tiny:tuned": GET,
    "/api/tags": GET,
    "/model_info": GET,
    "/get_model_info": GET,
}
PAIR = ("/server_info", "/get_server_info", "/v1/loads")
"""Put together here, of what both engines say."""
TUNNEL = "/v1/realtime"
"""Served to those who ask for a WebSocket; who may is in test_tunnel_heads.py."""
OPEN = ("/livez", "/readyz", "/health", "/health_generate", "/ready", "/ping")
"""Answered here, with a key or without."""

METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"),
    *("QUERY", "PURGE", "LINK", "MKCOL", "PROPFIND", "M-SEARCH"),
)
NO_METHODS = ("BREW", "get", "Post", "FLUSH", "PRI", "DESCRIBE", "GET\t", "G\0T", "", "CONNECT")

# Every route of SGLang 0.5.23 that is not served: http_server.py, v1_loads.py, elastic_ep.py, and
# what FastAPI and the metrics add; and what is served only where a key for administration, or
# metrics, are configured, which they are not here.
ADMINISTRATION = (
    *("/set_internal_state", "/dumper/start", "/flush_cache", "/add_external_corpus"),
    *("/remove_external_corpus", "/list_external_corpora", "/hicache/storage-backend/clear"),
    *("/hicache/storage-backend", "/get_hicache_l3_cache_layout", "/start_profile"),
    *("/stop_profile", "/set_trace_level", "/freeze_gc", "/start_expert_distribution_record"),
    *("/stop_expert_distribution_record", "/dump_expert_distribution_record"),
    *("/update_weights_from_disk", "/init_weights_send_group_for_remote_instance"),
    *("/send_weights_to_remote_instance", "/get_remote_instance_transfer_engine_info"),
    *("/remote_instance_transfer_engine_info", "/init_weights_update_group"),
    *("/destroy_weights_update_group", "/update_weights_from_tensor", "/begin_weight_update"),
    *("/end_weight_update", "/update_weights_from_distributed", "/update_weights_from_ipc"),
    *("/update_weight_version", "/get_weights_by_name", "/release_memory_occupation"),
    *("/resume_memory_occupation", "/weights_checker", "/slow_down", "/pd_role_switch"),
    *("/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter"),
    *("/configure_logging", "/abort_request", "/vertex_generate", "/", "/docs", "/redoc"),
    *("/pause_generation", "/continue_generation", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    *("/openapi.json", "/docs/oauth2-redirect", "/metrics", "/metrics/", "/get_load"),
    # of older and newer versions, of other servers, and of our own other listener
    *("/update_weights", "/get_loads", "/v1/files", "/v1/batches", "/v1/conversations", "/worker"),
    *("/start_collective_rpc", "/collective_rpc", "/sleep", "/wake_up", "/reset_prefix_cache"),
    *("/add_worker", "/remove_worker", "/list_workers", "/workers", "/v1/load_lora_adapter"),
    *("/admin/state", "/admin/control", "/admin/upstreams/spec", "/admin/reload", "/admin"),
    *("/.env", "/favicon.ico", "/robots.txt", "/.well-known/security.txt", "*"),
)

SPELLINGS = (
    *("{}/", "/{}", "//{}", "{}//", "/.{}", "{}/.", "{}/..", "/v1/..{}", "/v1/%2e%2e{}"),
    *("/v1/..%2f..{}", "/%2e%2e{}", "{};x", "{};x=1", "{}%00", "{}%20", "{}%3F", "{}%23x", "{}."),
    *(
        "{}%2F",
        "{}%2f..",
        "{}\\",
        "\\..{}",
        "{}%5c",
        "{}%0d%0aX:%20y",
        "{}*",
        "{}/x",
        "/generate{}",
    ),
    *("/v1/chat/completions/../..{}", "/livez/..{}", "/v1/models/..{}", "/v1/models/..%2f..{}"),
    *("/v1/responses/..{}", "/v1/responses/resp_1/..{}", "/v1/models/%2e%2e/%2e%2e{}"),
    *("/v1/models/%252e%252e{}", "/v1/responses/resp_1/cancel/../../../..{}", "{}~", "{}'"),
)
MADE_UP = {"x-http-method-override": "POST", "x-original-url": "/flush_cache"}
HOSTILE = {
    **MADE_UP,
    "x-rewrite-url": "/flush_cache",
    "x-forwarded-host": "evil.example",
    "x-forwarded-prefix": "/flush_cache",
    "x-upstream": "http://evil.example",
    "x-portkey-custom-host": "http://evil.example",
    "forwarded": "host=evil.example",
    "referer": "http://evil.example/flush_cache",
}


def raw(
    method: str, path: str, headers: dict[str, str] | None = None, *, body: bytes = b"{}"
) -> bytes:
    """A request as it is written; a body where the method usually has one."""
    has_body = method in {"POST", "PUT", "PATCH", "DELETE", "QUERY"}
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body)}"] if has_body else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body if has_body else b"")


class Asker:
    """Asks one thing after the other, on a connection that is renewed where it was closed."""

    def __init__(self, it: Rig) -> None:
        self._it = it
        self._client: RawClient | None = None

    async def ask(self, request: bytes) -> Response:
        """The answer to one request."""
        if self._client is None:
            self._client = await self._it.client()
        self._client.send(request)
        response = await self._client.response(head_only=request.startswith(b"HEAD "))
        if response.header("connection") == "close":
            self._client.close()
            self._client = None
        return response


def reached(it: Rig) -> list[str]:
    """The request lines that came to the engines since the last look."""
    lines = [each.line for upstream in (it.spec, it.base) for each in upstream.requests]
    it.spec.requests.clear()
    it.base.requests.clear()
    return lines


@asynccontextmanager
async def guarded(keys: dict[str, str]) -> AsyncIterator[tuple[Rig, Asker]]:
    """A rig with client keys or without, and who asks."""
    async with rig(auth__api_keys=keys) as it:
        yield it, Asker(it)


both = pytest.mark.parametrize("keys", [{}, {"team": KEY}], ids=["open", "with keys"])


# Every path x every method x with a key and without --------------------------------------------


@both
@pytest.mark.parametrize("headers", [{}, WITH_KEY], ids=["no key", "key"])
async def test_every_path_with_every_method(keys: dict[str, str], headers: dict[str, str]) -> None:
    """kcolemangt/llm-router#13: one method had been forgotten where keys are asked for."""
    async with guarded(keys) as (it, asker):
        for path, allowed in SERVED.items():
            for method in METHODS:
                response = await asker.ask(raw(method, path, headers))
                expected = 401 if keys and not headers else 200 if method in allowed else 405
                assert response.status == expected, (method, path)
                sent = "GET" if method == "HEAD" else method
                lines = [f"{sent} {path} HTTP/1.1"] if expected == 200 else []
                assert reached(it) == lines, (method, path)
                if expected == 405:
                    assert response.header("allow") == ", ".join(allowed)
                    _is_an_error(response, path, "method_not_allowed")
                if expected == 401:
                    _is_an_error(response, path, "invalid_api_key", head=method == "HEAD")


@both
@pytest.mark.parametrize("headers", [{}, WITH_KEY], ids=["no key", "key"])
async def test_health_paths_with_every_method(
    keys: dict[str, str], headers: dict[str, str]
) -> None:
    """Open to GET and HEAD; every other method is asked for its key like anything else."""
    async with guarded(keys) as (it, asker):
        for path in OPEN:
            for method in METHODS:
                response = await asker.ask(raw(method, path, headers))
                expected = 200 if method in GET else 401 if keys and not headers else 405
                assert response.status == expected, (method, path)
        assert reached(it) == []


@both
@pytest.mark.parametrize("headers", [{}, WITH_KEY], ids=["no key", "key"])
async def test_pages_of_the_pair_with_every_method(
    keys: dict[str, str], headers: dict[str, str]
) -> None:
    """Asked for like any path; no other method asks anything of the engines."""
    async with guarded(keys) as (it, asker):
        for path in PAIR:
            for method in METHODS:
                response = await asker.ask(raw(method, path, headers))
                expected = 401 if keys and not headers else 200 if method in GET else 405
                assert response.status == expected, (method, path)
        assert reached(it) == []  # these are asked for by probes, too, and not listed


@both
@pytest.mark.parametrize("headers", [{}, WITH_KEY], ids=["no key", "key"])
async def test_all_of_sglangs_administration(keys: dict[str, str], headers: dict[str, str]) -> None:
    """mrobinson2/AzureAgentForge#23: a prefix passed internal endpoints through. Here: 404.

    With the methods that SGLang takes there, with queries, and with headers that other proxies
    take for another path or another host.
    """
    async with guarded(keys) as (it, asker):
        for path in ADMINISTRATION:
            for method in ("GET", "POST", "PUT", "DELETE"):
                for target in (path, f"{path}?timeout=1"):
                    response = await asker.ask(raw(method, target, {**headers, **HOSTILE}))
                    # `*` is no path (RFC 9112 section 3.2.4), so it is no request that is accepted.
                    expected = 400 if path == "*" else 401 if keys and not headers else 404
                    assert response.status == expected, (method, target)
        assert reached(it) == []


@pytest.mark.parametrize("method", NO_METHODS)
async def test_what_is_no_method(method: str) -> None:
    """A word that HTTP does not know, in the wrong case, or none: 400, and the connection ends."""
    async with rig() as it:
        client = await it.client()
        client.send(raw(method, "/generate"))
        response = await client.response()
        assert (response.status, response.code) == (400, "bad_request")
        assert await client.at_end()
        assert reached(it) == []


def _is_an_error(response: Response, path: str, code: str, *, head: bool = False) -> None:
    """The body is the error that the clients of `path` understand; that of a HEAD is left out."""
    if head or not response.body:
        return
    told = json.loads(response.body)
    if path.startswith("/v1/messages"):
        assert told["type"] == "error"
        assert code in told["error"]["message"]
    else:
        assert told["error"]["code"] == code


# Other spellings -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/flush_cache", "/v1/chat/completions", "/livez", "/generate"])
async def test_no_second_spelling_of_anything(target: str) -> None:
    """A path is what is listed, byte by byte: nothing is decoded, joined or trimmed for it.

    Whatever an engine would make of these, it does not get them.
    """
    async with rig() as it:
        asker = Asker(it)
        for spelling in SPELLINGS:
            path = spelling.format(target)
            for method in ("GET", "POST"):
                response = await asker.ask(raw(method, path))
                assert response.status in {400, 404, 405}, path
        for path in _cases(target):
            assert (await asker.ask(raw("POST", path))).status in {400, 404}, path
        assert reached(it) == []


def _cases(path: str) -> Iterator[str]:
    """The path in other cases, and with one letter encoded."""
    yield path.upper()
    yield path[0] + path[1:].capitalize()
    yield f"{path[:2]}%{ord(path[2]):02x}{path[3:]}"
    yield "".join(f"%{ord(letter):02X}" for letter in path)


@pytest.mark.parametrize(
    "target",
    ["/generate\0", "/generate\x01", "/generate\x7f", "/gen erate", "http://evil.example/generate"],
)
async def test_what_is_no_path(target: str) -> None:
    """Control bytes, spaces and whole URLs are not taken for paths: 400."""
    async with rig() as it:
        client = await it.client()
        client.send(raw("POST", target))
        assert (await client.response()).status == 400
        assert reached(it) == []


@pytest.mark.parametrize(
    ("size", "status"), [(1000, 404), (30_000, 404), (33_000, 431), (2_000_000, 431)]
)
async def test_long_paths(size: int, status: int) -> None:
    """A path longer than a head may be is refused with it; a shorter one is just not served."""
    async with rig() as it:
        for path in ("/" + "a" * size, "/v1/responses/" + "a" * size + "/x"):
            client = await it.client()
            client.send(raw("GET", path))
            assert (await client.response()).status == status
        assert reached(it) == []


async def test_a_query_passes_and_decides_nothing() -> None:
    """What follows `?` is the engine's; it makes no path of what is none."""
    async with rig() as it:
        asker = Asker(it)
        for query in ("?x=1", "?", "?a=/flush_cache", "?%00", "?a?b", "?../../flush_cache"):
            assert (await asker.ask(raw("POST", f"/generate{query}"))).status == 200, query
            assert reached(it) == [f"POST /generate{query} HTTP/1.1"]
        for target in ("?/generate", "/?/generate", "/x?/generate"):
            assert (await asker.ask(raw("POST", target))).status in {400, 404}, target
        assert reached(it) == []


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("/v1", 404),
        ("/v1/", 404),
        ("/chat/completions", 404),
        ("//v1/chat/completions", 404),
        ("/v1/v1/chat/completions", 404),
        ("/v1/chat/completions/", 404),
    ],
)
async def test_a_wrong_base_url_says_which_path_was_tried(name: str, status: int) -> None:
    """open-webui/open-webui#1483: `/v1` left out or doubled, a slash too many: the 404 names it."""
    async with rig() as it:
        response = await Asker(it).ask(raw("POST", name))
        assert (response.status, response.code) == (status, "not_found")
        assert f"{name} is not served" in json.loads(response.body)["error"]["message"]


@pytest.mark.parametrize("key", ["", " ", "none", "EMPTY"])
async def test_a_blank_key_is_no_fault_where_none_is_asked_for(key: str) -> None:
    """open-webui/open-webui#1483: clients send `Bearer ` with nothing or anything behind it."""
    async with rig() as it:
        headers = {"authorization": f"Bearer {key}"}
        assert (await Asker(it).ask(raw("POST", "/generate", headers))).status == 200


# Where a request goes --------------------------------------------------------------------------


async def test_nothing_in_a_request_chooses_a_host() -> None:
    """Portkey-AI/gateway#1718: a client's header chose the host. Here no field can.

    Host, forwarding headers, fields of the body and of the query: the engines are those of the
    configuration, and what the client called us is not passed on as Host.
    """
    body = {
        "url": "http://evil.example",
        "base_url": "http://evil.example/v1",
        "api_base": "http://evil.example/v1",
        "custom_host": "http://evil.example",
        "model": "http://evil.example/model",
        "provider": {"base_url": "http://evil.example"},
    }
    async with rig() as it:
        asker = Asker(it)
        path = "/generate?base_url=http://evil.example&host=evil.example"
        request = raw("POST", path, HOSTILE, body=json.dumps(body).encode())
        request = request.replace(b"Host: test", b"Host: evil.example")
        assert (await asker.ask(request)).status == 200
        (received,) = it.spec.requests
        assert received.header("host") == it.spec.url.partition("://")[2]
        assert received.count("host") == 1
        assert json.loads(received.body) == body


# Written twice ---------------------------------------------------------------------------------


def test_the_tables_are_the_allow_list() -> None:
    """What is enumerated here is all there is: a new row of the code needs one here."""
    ids = {"/v1/models/{id}", "/v1/responses/{id}", "/v1/responses/{id}/cancel"}
    plain = {TUNNEL} | {
        path for path in SERVED if not path.startswith(("/v1/models/", "/v1/responses/"))
    }

    for_all = {row.template for row in ENDPOINTS if not row.reserved}
    assert for_all == plain | ids | set(OPEN) | set(PAIR)
    assert {row.template for row in ENDPOINTS if row.reserved} <= set(ADMINISTRATION)
    assert not set(ADMINISTRATION) & for_all
    assert {row.template for row in ENDPOINTS if not row.needs_key} == set(OPEN)
