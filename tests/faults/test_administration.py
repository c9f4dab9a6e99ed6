"""SGLang's administration through the pair: who may, what goes to both, and what is said of it.

What one engine has done and the other has not must never look like a success; whoever may not
administer learns nothing of these paths; and what a client leaves behind is ended.
"""

import asyncio
import json
import logging
from typing import Any

import pytest

from proxy.core.endpoints import ENDPOINTS, Kind
from proxy.errors import ConfigError
from tests.harness.client import RawClient, Response, get, post
from tests.harness.configs import config, findings
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import (
    END,
    STREAM_HEAD,
    ByHand,
    Fin,
    Gate,
    Received,
    Reset,
    ScriptedUpstream,
    Send,
    Silence,
    chunk,
    reply,
)

KEY = "admin-secret"
ADMIN = {"authorization": f"Bearer {KEY}"}
CLIENT = {"authorization": "Bearer sk-right"}
KEYS = {"team": "sk-right"}
DONE = [
    (each.template, method)
    for each in ENDPOINTS
    if each.kind is Kind.ADMINISTRATION
    for method in each.methods
]
WITHHELD = [
    (each.template, method)
    for each in ENDPOINTS
    if each.kind is Kind.WITHHELD
    for method in each.methods
]
LOADED = b'{"success":true,"error_message":null,"loaded_adapters":{"a":"/a"}}'
REFUSED = b'{"success":false,"error_message":"no such adapter","loaded_adapters":{}}'
FLUSHED = b"Cache flushed.\nPlease check backend logs for more details.\n"
BUSY = b"Flush cache failed.\n"


def request(
    path: str, method: str = "POST", headers: dict[str, str] | None = None, body: bytes = b"{}"
) -> bytes:
    """A request for administration; with a body where it is a POST."""
    if method == "POST":
        return post(path, body, headers=headers)
    return get(path, method=method, headers=headers)


async def ask(it: Rig, wanted: bytes, *, head_only: bool = False) -> Response:
    """The answer to one request, over a connection of its own."""
    client = await it.client()
    client.send(wanted)
    return await client.response(head_only=head_only)


def told(response: Response) -> Any:  # noqa: ANN401 - JSON
    """The body."""
    return json.loads(response.body)


def heard(it: Rig) -> list[Received]:
    """What both engines have got."""
    return [*it.spec.requests, *it.base.requests]


def text(body: bytes, status: str = "200 OK") -> bytes:
    """An answer as Starlette's plain Response gives it: without a type."""
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


# Who may ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "headers", "status"),
    [
        ({}, {}, 404),
        ({}, CLIENT, 404),
        ({}, {"authorization": f"Basic {KEY}"}, 404),
        ({}, {"authorization": f"Bearer {KEY}x"}, 404),
        ({}, {"authorization": f"Bearer {KEY[:-1]}"}, 404),
        (KEYS, {}, 401),
        (KEYS, {"x-api-key": "wrong"}, 401),
        (KEYS, CLIENT, 404),
    ],
)
async def test_nobody_else_learns_of_these_paths(
    keys: dict[str, str], headers: dict[str, str], status: int
) -> None:
    """A client's key is no key for them; they are answered as any path that is not served."""
    async with rig(auth__api_keys=keys, upstreams__admin_api_key=KEY, wait=False) as it:
        client = await it.client()

        async def answer(path: str, method: str) -> Response:
            client.send(request(path, method, headers))
            return await client.response()

        for path, method in (*DONE, *WITHHELD):
            for spoken in (method, "DELETE"):
                response = await answer(path, spoken)
                nowhere = await answer("/nowhere", spoken)
                assert response.status == nowhere.status == status
                assert response.body == nowhere.body.replace(b"/nowhere", path.encode())
                assert {n for n, _ in response.headers} == {n for n, _ in nowhere.headers}
        assert heard(it) == []
        assert it.total("requests_started_total") == it.total("requests_total", endpoint="other")


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
@pytest.mark.parametrize("keys", [{}, KEYS])
async def test_the_key_may_stand_where_clients_put_theirs(name: str, keys: dict[str, str]) -> None:
    """And no client key is needed beside it; the engines get it where SGLang looks for it."""
    value = f"Bearer {KEY}" if name == "authorization" else KEY
    async with rig(auth__api_keys=keys, upstreams__admin_api_key=KEY) as it:
        response = await ask(it, request("/abort_request", headers={name: value}))
        assert response.status == 200
        assert [each.header("authorization") for each in heard(it)] == [f"Bearer {KEY}"] * 2
        assert [each.count("x-api-key") for each in heard(it)] == [0, 0]


async def test_the_key_opens_no_other_path() -> None:
    """It is no client's; a path that is not served is not, with it either."""
    async with rig(auth__api_keys=KEYS, upstreams__admin_api_key=KEY) as it:
        assert (await ask(it, request("/generate", headers=ADMIN))).status == 401
        assert (await ask(it, get("/server_info", headers=ADMIN))).status == 401
        assert (await ask(it, request("/freeze_gc", headers=ADMIN))).status == 401
        assert heard(it) == []


async def test_without_a_key_of_ours_nobody_administers() -> None:
    """Also who presents nothing, or an empty key."""
    async with rig() as it:
        for value in ("Bearer", "Bearer ", ""):
            wanted = request("/flush_cache", headers={"authorization": value})
            assert (await ask(it, wanted)).status == 404
        assert heard(it) == []


def test_a_clients_key_cannot_be_the_key() -> None:
    """All clients would administer."""
    found = findings('[upstreams]\nadmin_api_key = "k"\n[auth]\napi_keys = {ann = "k"}')
    assert found == (("upstreams.admin_api_key", "must not be the key of a client"),)


async def test_no_web_page_administers() -> None:
    """A preflight is answered as for what is not served: its browser sends no key with it."""
    async with rig(
        upstreams__admin_api_key=KEY, listen__cors_origins=["https://chat.example"]
    ) as it:
        asking = {
            "origin": "https://chat.example",
            "access-control-request-method": "POST",
        }
        response = await ask(it, get("/flush_cache", method="OPTIONS", headers=asking))
        assert response.status == 404
        response = await ask(it, get("/flush_cache", method="OPTIONS", headers={**asking, **ADMIN}))
        assert (response.status, response.header("allow")) == (405, "GET, POST")


async def test_a_reload_changes_and_takes_away_the_key() -> None:
    """What has come with the old key is done with it."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        client = await it.client()
        whole = request("/flush_cache", headers=ADMIN, body=b'{"a": 1}')
        client.send(whole[:-3])
        await until(lambda: it.app.front.open_requests == 1, "its head is read")
        it.keys["upstreams.admin_api_key"] = "another"
        assert await it.app.reload() == ("upstreams.admin_api_key",)
        client.send(whole[-3:])
        assert (await client.response()).status == 200
        assert [each.header("authorization") for each in heard(it)] == [f"Bearer {KEY}"] * 2

        assert (await ask(it, request("/flush_cache", headers=ADMIN))).status == 404
        other = {"authorization": "Bearer another"}
        assert (await ask(it, request("/flush_cache", headers=other))).status == 200
        it.keys["upstreams.admin_api_key"] = ""
        await it.app.reload()
        assert (await ask(it, request("/flush_cache", headers=other))).status == 404


# What goes to both -----------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "method"), DONE)
async def test_both_are_told_the_same(path: str, method: str) -> None:
    """Method, query, body and type, as they came; what a client says to us alone is not passed."""
    headers = {**ADMIN, "x-request-id": "mine", "cookie": "a=b", "x-forwarded-for": "10.0.0.1"}
    async with rig(upstreams__admin_api_key=KEY) as it:
        wanted = f"{path}?timeout=1.5&x=%20%2f&y"
        response = await ask(it, request(wanted, method, headers, body=b'{"rid": "a"}'))
        assert response.status == 200
        assert response.header("x-request-id") == "mine"
        assert response.header("x-specswitch-upstream") is None
        assert len(it.spec.requests) == len(it.base.requests) == 1
        for each in heard(it):
            assert each.line == f"{method} {wanted} HTTP/1.1"
            assert each.body == (b'{"rid": "a"}' if method == "POST" else b"")
            if method == "POST":
                assert each.header("content-type") == "application/json"
            assert each.header("cookie") is None
            assert each.header("x-forwarded-for") is None
            assert each.header("x-request-id") == "mine"
        assert it.total("requests_total", endpoint=path, upstream="none", outcome="ok") == 1
        assert it.total("decisions_total") == 0


async def test_engines_with_keys_of_their_own_are_told_with_the_one_for_it() -> None:
    """SGLang takes no other for its administration."""
    async with rig(
        upstreams__admin_api_key=KEY,
        upstreams__spec__api_key="spec-key",
        upstreams__base__api_key="base-key",
    ) as it:
        assert (await ask(it, request("/flush_cache", headers=ADMIN))).status == 200
        assert [each.header("authorization") for each in heard(it)] == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"a": NaN}', b"x" * 100_000]
)
async def test_bodies_are_the_engines_to_judge(body: bytes) -> None:
    """They go as they came; what the engines say of them is said."""
    wrong = reply(b'{"object":"error","message":"bad"}', status="400 Bad Request")
    async with rig(upstreams__admin_api_key=KEY) as it:
        it.spec.script(Send(wrong))
        it.base.script(Send(wrong))
        response = await ask(it, request("/pause_generation", headers=ADMIN, body=body))
        assert (response.status, response.code) == (502, "administration_failed")
        assert [each.body for each in heard(it)] == [body, body]


async def test_a_body_in_chunks_and_one_that_is_asked_for() -> None:
    """And the connection goes on after each."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        client = await it.client()
        head = f"POST /flush_cache HTTP/1.1\r\nHost: t\r\nauthorization: Bearer {KEY}\r\n".encode()
        client.send(head + b"transfer-encoding: chunked\r\n\r\n")
        client.send(chunk(b'{"a":') + chunk(b"1}") + END)
        assert (await client.response()).status == 200
        client.send(head + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert (await client.head())[0] == 100
        client.send(b"{}")
        assert (await client.response()).status == 200
        client.send(get("/livez"))
        assert (await client.response()).status == 200
        assert [each.body for each in it.base.requests] == [b'{"a":1}', b"{}"]
        assert [each.header("expect") for each in heard(it)] == [None] * 4


@pytest.mark.parametrize(("path", "method"), DONE)
async def test_other_methods_are_405(path: str, method: str) -> None:
    """For who may; HEAD, too: asking for a head would do something."""
    allowed = next(each.methods for each in ENDPOINTS if each.template == path)
    async with rig(upstreams__admin_api_key=KEY, wait=False) as it:
        for spoken in {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"} - {*allowed}:
            response = await ask(it, request(path, spoken, ADMIN), head_only=spoken == "HEAD")
            assert response.status == 405, spoken
            assert response.header("allow") == ", ".join(allowed)
        assert heard(it) == []


@pytest.mark.parametrize(("path", "method"), WITHHELD)
async def test_weights_are_not_touched(path: str, method: str) -> None:
    """501 to who may administer, with a reason; nothing is sent, and the connection goes on."""
    async with rig(upstreams__admin_api_key=KEY, wait=False) as it:
        client = await it.client()
        for _ in range(2):
            client.send(request(path, method, ADMIN))
            response = await client.response()
            assert (response.status, response.code) == (501, "not_supported")
            assert "must stay alike" in told(response)["error"]["message"]
        client.send(request(path, "PATCH", ADMIN))
        assert (await client.response()).status == 405
        assert heard(it) == []


async def test_a_large_body_is_refused_as_everywhere() -> None:
    """413, and no engine hears of it."""
    async with rig(upstreams__admin_api_key=KEY, limits__max_body_bytes=10, wait=False) as it:
        response = await ask(it, request("/flush_cache", headers=ADMIN, body=b"x" * 11))
        assert (response.status, response.code) == (413, "body_too_large")
        assert heard(it) == []


@pytest.mark.parametrize("state", ["drain", "maint"])
async def test_who_is_taken_out_is_told_too(state: str) -> None:
    """It may come back, and must not differ then."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        await it.admin("PUT", "/admin/upstreams/spec", {"admin_state": state})
        assert (await ask(it, request("/flush_cache", headers=ADMIN))).status == 200
        assert len(it.spec.requests) == 1


# What is said of it ----------------------------------------------------------------------------


async def both_say(spec: bytes, base: bytes, path: str = "/load_lora_adapter") -> Response:
    """What is answered where the engines answer so."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        it.spec.script(Send(spec))
        it.base.script(Send(base))
        return await ask(it, request(path, headers=ADMIN))


async def test_sglangs_fields_with_both_results() -> None:
    """Where both have done it."""
    response = await both_say(reply(LOADED), reply(LOADED))
    own = json.loads(LOADED)
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    assert told(response) == {
        **own,
        "upstreams": {
            "spec": {"status": 200, "body": own},
            "base": {"status": 200, "body": own},
        },
    }


@pytest.mark.parametrize(
    ("spec", "last"), [(FLUSHED, b"spec: 200, the same\n"), (b"done\n", b"spec: 200, done\n")]
)
async def test_a_text_stays_a_text(
    spec: bytes, last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line for each server below it."""
    response = await both_say(text(spec), text(FLUSHED), "/flush_cache")
    assert not warnings(caplog)
    assert response.status == 200
    assert response.header("content-type") == "text/plain; charset=utf-8"
    assert response.body == FLUSHED + b"base: 200\n" + last


@pytest.mark.parametrize(
    ("spec", "base", "fields"),
    [
        (text(b""), text(b""), {}),
        (text(b"done"), reply(b'{"status": "ok"}'), {"status": "ok"}),
        (reply(b'{"status": "ok"}'), text(b"done"), {}),
        (reply(b"[1]"), reply(b"[2]"), {}),
        (text(b"not json"), reply(b'{"a": NaN}'), {"a": None}),
    ],
)
async def test_other_shapes_are_json(spec: bytes, base: bytes, fields: dict[str, object]) -> None:
    """What is empty, of two shapes, or none that SGLang has: base's fields, and both results."""
    response = await both_say(spec, base)
    assert response.status == 200
    assert {k: v for k, v in told(response).items() if k != "upstreams"} == fields
    assert {each["status"] for each in told(response)["upstreams"].values()} == {200}


@pytest.mark.parametrize(
    "bad",
    [
        reply(REFUSED),
        reply(b'{"success": null}'),
        reply(b'{"success": "yes"}'),
        reply(REFUSED, status="400 Bad Request"),
        text(BUSY, "400 Bad Request"),
        text(b"", "204 No Content").replace(b"204 No Content", b"304 Not Modified"),
        reply(b'{"detail":"Not Found"}', status="404 Not Found"),
        reply(b'{"error":"Unauthorized"}', status="401 Unauthorized"),
        reply(b"oh", status="599 Odd"),
    ],
)
@pytest.mark.parametrize("who", ["spec", "base"])
async def test_half_a_success_is_an_error(bad: bytes, who: str) -> None:
    """It names who has done it and who has not, and shows both results."""
    answers = (bad, reply(LOADED)) if who == "spec" else (reply(LOADED), bad)
    response = await both_say(*answers)
    other = "base" if who == "spec" else "spec"
    assert (response.status, response.code) == (502, "partial_failure")
    message = told(response)["error"]["message"]
    assert message.startswith(f"/load_lora_adapter was done by {other} alone: {who} answers ")
    assert told(response)["upstreams"][other] == {"status": 200, "body": json.loads(LOADED)}
    assert set(told(response)["upstreams"][who]) == {"status", "body"}
    assert "success" not in told(response)


@pytest.mark.parametrize("body", [b"", b'{"success": false', b"[" * 100_000, b"\xff\xfe"])
@pytest.mark.parametrize("who", ["spec", "base"])
async def test_what_cannot_be_read_is_no_success(body: bytes, who: str) -> None:
    """It may say that nothing was done; it is shown as it came."""
    answers = (reply(body), reply(LOADED)) if who == "spec" else (reply(LOADED), reply(body))
    response = await both_say(*answers)
    other = "base" if who == "spec" else "spec"
    assert (response.status, response.code) == (502, "partial_failure")
    assert told(response)["error"]["message"] == (
        f"/load_lora_adapter was done by {other} alone: "
        f"{who} answers 200 with JSON that cannot be read"
    )
    shown = {"status": 200, "body": body.decode(errors="replace")}
    assert told(response)["upstreams"][who] == shown


@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=utf-8", None])
async def test_what_says_that_it_has_failed_has(kind: str | None) -> None:
    """Whatever its type is said to be."""
    head = "" if kind is None else f"Content-Type: {kind}\r\n"
    refused = f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(REFUSED)}\r\n\r\n".encode() + REFUSED
    response = await both_say(refused, refused)
    assert (response.status, response.code) == (502, "administration_failed")


async def test_no_content_is_a_success() -> None:
    """It has no body, whatever its type is said to be."""
    nothing = b"HTTP/1.1 204 No Content\r\nContent-Type: application/json\r\n\r\n"
    assert (await both_say(nothing, nothing)).status == 200


async def test_no_success_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """Both results, and that neither has done it; the log says so, too."""
    response = await both_say(text(BUSY, "400 Bad Request"), reply(REFUSED))
    (line,) = warnings(caplog)
    assert line.getMessage() == f"administration: {told(response)['error']['message']}"
    assert vars(line)["fields"] == {
        "endpoint": "/load_lora_adapter",
        "code": "administration_failed",
    }
    assert (response.status, response.code) == (502, "administration_failed")
    assert told(response)["error"]["message"] == (
        "/load_lora_adapter was done by neither server: spec answers 400; "
        "base answers 200 without success"
    )
    assert told(response)["upstreams"] == {
        "spec": {"status": 400, "body": BUSY.decode()},
        "base": {"status": 200, "body": json.loads(REFUSED)},
    }


HALF = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize(
    "steps",
    [
        (Reset(),),
        (Fin(),),
        (Send(HALF), Reset()),
        (Send(HALF), Fin()),
        (Send(STREAM_HEAD + chunk(b"a")), Fin()),
        (Send(b"garbage\r\n\r\n"), Fin()),
        (Send(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"), Fin()),
        (Send(reply(b"x" * (2**20 + 1))), Silence()),
    ],
)
@pytest.mark.parametrize("who", ["spec", "base"])
async def test_an_engine_that_breaks_off(steps: tuple[Any, ...], who: str) -> None:
    """What it has done is not known, so it is no success; nothing is sent twice."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        it.upstream(who).script(*steps)
        response = await ask(it, request("/load_lora_adapter", headers=ADMIN))
        assert (response.status, response.code) == (502, "partial_failure")
        result = told(response)["upstreams"][who]
        assert result["status"] is None
        assert f"{it.upstream(who).url}/load_lora_adapter" in result["error"]
        assert KEY not in response.body.decode()
        assert len(heard(it)) == 2
        assert it.total("requests_total", outcome="failed") == 1
        assert it.total("ejections_total") == 0


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What is logged of administration that has failed."""
    return [line for line in caplog.records if line.getMessage().startswith("administration: ")]


async def test_an_engine_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """Its port refuses; the other has done it. The log says which, and why, and no key."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        await it.spec.stop()
        response = await ask(it, request("/flush_cache", headers=ADMIN))
        assert (response.status, response.code) == (502, "partial_failure")
        (line,) = warnings(caplog)
        assert line.levelname == "WARNING"
        assert "/flush_cache was done by base alone: spec has not answered" in line.getMessage()
        assert KEY not in f"{line.getMessage()} {vars(line)}"
        await it.base.stop()
        response = await ask(it, request("/flush_cache", headers=ADMIN))
        assert (response.status, response.code) == (502, "administration_failed")


async def test_an_engine_that_does_not_answer_in_time() -> None:
    """The other's result is shown all the same."""
    async with rig(upstreams__admin_api_key=KEY, timeouts__response=0.2) as it:
        it.spec.script(Silence())
        response = await ask(it, request("/flush_cache", headers=ADMIN))
        assert (response.status, response.code) == (502, "partial_failure")
        assert "did not answer within 0.2 s" in told(response)["upstreams"]["spec"]["error"]
        (asked,) = it.spec.requests
        async with asyncio.timeout(2):
            await asked.gone.wait()


# Clients that leave, and the end ---------------------------------------------------------------


async def waiting(it: Rig) -> RawClient:
    """A client whose request is with both engines."""
    it.spec.script(ByHand())
    it.base.script(ByHand())
    client = await it.client()
    client.send(request("/flush_cache", headers=ADMIN))
    await it.spec.received(1)
    await it.base.received(1)
    return client


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_a_client_that_leaves(how: str) -> None:
    """Both connections are closed, and it is counted as left."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        client = await waiting(it)
        assert it.metric("open_requests") == 1
        assert it.total("in_flight") == 0
        getattr(client, how)()
        async with asyncio.timeout(2):
            for each in heard(it):
                await each.gone.wait()
        await until(lambda: it.total("requests_total", outcome="abandoned") == 1, "it is counted")


async def test_its_request_is_not_load() -> None:
    """The mode and the waiting room know nothing of it; generation goes on beside it."""
    async with rig(upstreams__admin_api_key=KEY, policy__crossover=1.0) as it:
        client = await waiting(it)
        it.spec.script(Send(reply(b"{}")))
        response = await ask(it, post("/generate", {"text": "a"}))
        assert response.header("x-specswitch-upstream") == "spec"
        for each in heard(it)[:1] + it.base.requests[:1]:
            each.say(reply(b"{}"))
            each.over()
        assert (await client.response()).status == 200


async def test_draining_waits_for_it_and_takes_no_other() -> None:
    """503 `draining` to the next; what runs is ended well."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        client = await waiting(it)
        next_one = await it.client()
        it.app.stop()
        stopped = asyncio.get_running_loop().create_task(it.app.until_stopped())
        await until(lambda: it.app.dispatcher.draining, "it drains")
        next_one.send(request("/flush_cache", headers=ADMIN))
        response = await next_one.response()
        assert (response.status, response.code) == (503, "draining")
        assert response.header("connection") == "close"
        assert not stopped.done()
        for each in heard(it):
            each.say(reply(b"{}"))
            each.over()
        assert (await client.response()).status == 200
        assert await stopped == 0


async def test_the_end_cuts_it() -> None:
    """A process that goes down leaves no question behind."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        client = await waiting(it)
        await it.end()
        assert "/flush_cache" not in {task.get_name() for task in asyncio.all_tasks()}
        assert await client.at_end()
        async with asyncio.timeout(2):
            for each in heard(it):
                await each.gone.wait()


async def test_no_more_than_a_few_run_at_one_time() -> None:
    """What is more is refused at once, with the count; who leaves makes room."""
    async with rig(upstreams__admin_api_key=KEY) as it:
        gate = asyncio.Event()
        clients = [await it.client() for _ in range(8)]
        for upstream in (it.spec, it.base):
            _hold(upstream, gate)
        for client in clients:
            client.send(request("/flush_cache", headers=ADMIN))
        await it.base.received(8)
        late = await ask(it, request("/abort_request", headers=ADMIN))
        assert (late.status, late.code) == (429, "overloaded")
        assert late.header("retry-after") is not None
        clients.pop().close()
        await until(lambda: it.app.front.open_requests == 7, "one has left")
        clients.append(await it.client())
        clients[-1].send(request("/flush_cache", headers=ADMIN))
        await it.base.received(9)
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == 9


def _hold(upstream: ScriptedUpstream, gate: asyncio.Event) -> None:
    upstream.always(Gate(gate), Send(reply(b"{}")))


def test_the_key_cannot_be_given_by_halves() -> None:
    """A key that no header can carry is a finding."""
    with pytest.raises(ConfigError):
        config('[upstreams]\nadmin_api_key = "two words"')


# What follows from it --------------------------------------------------------------------------


@pytest.mark.parametrize("stays", [True, False])
async def test_an_adapter_that_was_loaded_is_known(*, stays: bool) -> None:
    """Its name leads to base as that of an older one does, though its client did not stay."""
    async with rig(upstreams__admin_api_key=KEY, policy__control="spec") as it:
        named = post("/v1/chat/completions", {"model": "tiny:sql", "messages": []})
        before = await ask(it, named)
        assert before.header("x-specswitch-reason") == "control"
        cards = {"data": [{"id": "tiny"}, {"id": "sql", "parent": "tiny"}]}
        it.base.pages["/v1/models"] = it.spec.pages["/v1/models"] = reply(
            json.dumps(cards).encode()
        )
        it.base.script(Send(reply(LOADED)))
        it.spec.script(*([Send(reply(LOADED))] if stays else [Silence()]))
        client = await it.client()
        client.send(request("/load_lora_adapter", headers=ADMIN))
        if stays:
            assert (await client.response()).status == 200
        else:
            await it.spec.received(2)
            client.close()
        await it.until(lambda: it.app.dispatcher.adapters == frozenset({"sql"}), "it is known")


async def test_an_adapter_that_was_loaded_while_a_probe_reads_is_known() -> None:
    """Its cards may be of before: the next probe reads them again."""

    def cards(*adapters: str) -> bytes:
        named = [{"id": name, "parent": "tiny"} for name in adapters]
        return reply(json.dumps({"data": [{"id": "tiny"}, *named]}).encode())

    async with rig(upstreams__admin_api_key=KEY, policy__control="spec") as it:
        gate = asyncio.Event()
        it.spec.script(Send(reply(LOADED)))
        it.spec.script(Gate(gate), Send(cards("a")))
        it.spec.script(Send(reply(LOADED)))
        it.spec.always(Send(cards("a", "sql")))
        it.spec.pages["/v1/models"] = None
        it.base.always(Send(reply(LOADED)))
        load = request("/load_lora_adapter", headers=ADMIN)
        assert (await ask(it, load)).status == 200
        await it.spec.received(2)  # a probe waits for the cards
        assert (await ask(it, load)).status == 200
        gate.set()
        both = frozenset({"a", "sql"})
        await it.until(lambda: it.app.dispatcher.adapters == both, "both are known")
