"""The admin listener under attack: no web page changes anything, nobody locks the operator out.

Every attack is a request that would change something but for the one thing that is wrong with it,
and it is tried on every route there is. A route that is added later is under the same attacks
without a word here: routes are read off the application.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from proxy.control import patience
from proxy.control.guard import MAX_BODY_BYTES, Guard
from proxy.core.words import Control, UpstreamName
from tests.harness.client import RawClient, Response, get, post
from tests.harness.running import Rig, rig, until

TOKEN = "s3cret-admin-token"
BODIES = {
    "/admin/control": b'{"control": "base"}',
    "/admin/upstreams/spec": b'{"admin_state": "maint"}',
    "/admin/reload": b"{}",
}
"""What would change something there; other routes are sent an empty object."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")

Pairs = tuple[tuple[str, str], ...]
GOOD: Pairs = (("Host", "localhost:8001"), ("Content-Type", "application/json"))


class Change(NamedTuple):
    """A route that changes something, or may."""

    method: str
    path: str

    def raw(self, headers: Pairs, *, path: str | None = None) -> bytes:
        """A request to it with exactly these headers."""
        body = BODIES.get(self.path, b"{}")
        lines = [f"{self.method} {path or self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def application(it: Rig) -> FastAPI:
    """The admin application as it is built for the listener."""
    guard = it.app.admin()._server.config.app
    assert isinstance(guard, Guard)
    inner = guard._app
    assert isinstance(inner, FastAPI)
    return inner


def routes(it: Rig) -> Iterator[tuple[str, frozenset[str]]]:
    """Every route's path, with names in place of its parameters, and its methods."""
    found: dict[str, frozenset[str]] = {}
    for route in application(it).routes:
        assert isinstance(route, Route | APIRoute), f"{route!r}: look at what is mounted here"
        path = route.path.replace("{name}", "spec")
        assert "{" not in path, "give the new parameter a value here"
        found[path] = found.get(path, frozenset()) | frozenset(route.methods or ())
    yield from found.items()


def changes(it: Rig) -> list[Change]:
    """Every route with a method that is no read."""
    found = [
        Change(method, path)
        for path, methods in routes(it)
        for method in sorted(methods - {"GET", "HEAD"})
    ]
    assert {Change("PUT", path) for path in list(BODIES)[:2]} <= set(found)
    return found


async def ask(it: Rig, raw: bytes) -> Response:
    """The answer of the admin listener to one request on a connection of its own."""
    async with await RawClient.connect(it.app.admin_port) as client:
        client.send(raw)
        return await client.response(head_only=raw.startswith(b"HEAD"))


def unchanged(it: Rig) -> bool:
    """Whether everything is as it was at the start."""
    pair = it.app.dispatcher
    states = {pair.upstream(name).admin_state.value for name in UpstreamName}
    return (
        pair.control is Control.AUTO
        and pair.control_set_by == "configuration"
        and states == {"ready"}
        and not pair.draining
    )


@asynccontextmanager
async def guarded(**overrides: object) -> AsyncIterator[Rig]:
    """A rig in which at the end nothing has been changed through the admin listener."""
    async with rig(**overrides) as it:  # type: ignore[arg-type]  # keys of the configuration only
        yield it
        assert unchanged(it)


async def refused(it: Rig, headers: Pairs, status: int, code: str) -> None:
    """Every change with these headers is refused so, and no page may read why."""
    for change in changes(it):
        response = await ask(it, change.raw(headers))
        assert (response.status, response.code) == (status, code), (change, headers)
        assert TOKEN.encode() not in response.body
        assert unchanged(it)
        assert not _shared(response)


def _shared(response: Response) -> list[str]:
    """The headers that would let pages of other origins read an answer."""
    return [name for name, _ in response.headers if name.lower().startswith("access-control-")]


# What is meant changes something, or the attacks below would prove nothing ----------------------


async def test_the_same_requests_unspoilt_change_something() -> None:
    """The control group: each of the bodies, with nothing wrong about it, is taken."""
    async with rig() as it:
        response = await ask(it, Change("PUT", "/admin/control").raw(GOOD))
        assert (response.status, it.app.dispatcher.control) == (200, Control.BASE)
        response = await ask(it, Change("PUT", "/admin/upstreams/spec").raw(GOOD))
        assert (response.status, it.app.dispatcher.spec.admin_state) == (200, "maint")


# Web pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kinds",
    [
        (),
        ("",),
        ("text/plain",),
        ("text/plain; charset=application/json",),
        ("text/plain;application/json",),
        ("text/plain, application/json",),
        ("application/x-www-form-urlencoded",),
        ("multipart/form-data; boundary=application/json",),
        ("application/jsonp",),
        ("application/json-patch+json",),
        ("text/json",),
        ("application/json", "text/plain"),
        ("text/plain", "application/json"),
    ],
)
async def test_no_form_changes_anything(kinds: tuple[str, ...]) -> None:
    """What a form or a simple fetch can send without asking first is none of these routes' food."""
    async with guarded() as it:
        headers = (GOOD[0], *(("Content-Type", kind) for kind in kinds))
        await refused(it, headers, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "origins",
    [
        ("http://evil.example",),
        ("null",),
        ("",),
        ("http://localhost",),
        ("http://localhost:8000",),
        ("http://localhost:80011",),
        ("http://localhost:8001.evil.example",),
        ("http://evil.localhost:8001",),
        ("http://127.0.0.1:8001",),
        ("http://user@localhost:8001",),
        ("http://localhost:8001/",),
        ("http://localhost:8001 http://evil.example",),
        ("file://localhost:8001",),
        ("chrome-extension://localhost:8001",),
        ("//localhost:8001",),
        ("localhost:8001",),
        ("*",),
        ("http://localhost:8001", "http://evil.example"),
        ("http://evil.example", "http://localhost:8001"),
        ("http://localhost:8001", "http://localhost:8001"),
    ],
)
async def test_no_page_of_another_origin_changes_anything(origins: tuple[str, ...]) -> None:
    """Another host, another port, no host, several: an Origin must be the Host, once.

    The scheme alone may differ, http or https: whoever puts TLS in front of this listener is the
    same host and port to a browser, and nothing else can answer there.
    """
    async with guarded() as it:
        headers = (*GOOD, *(("Origin", origin) for origin in origins))
        await refused(it, headers, 403, "other_origin")


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("",),
        ("evil.example",),
        ("evil.example:8001",),
        ("localhost.evil.example",),
        ("127.0.0.1.nip.io:8001",),
        ("127.0.0.1@evil.example",),
        ("evil.example@127.0.0.1",),
        ("2130706433",),
        ("0x7f000001",),
        ("127.1",),
        ("localhost.",),
        ("localhost:8001:80",),
        ("localhost, evil.example",),
        ("[::1].evil.example",),
        ("[evil.example]",),
        ("gpu1",),
        ("localhost:8001", "evil.example"),
        ("localhost:8001", "localhost:8001"),
    ],
)
async def test_no_name_that_leads_here_changes_anything(hosts: tuple[str, ...]) -> None:
    """DNS rebinding: a page's own name may lead to 127.0.0.1, but the browser sends that name.

    With and without an Origin that matches it; two Hosts or none are no Host.
    """
    async with guarded() as it:
        names = tuple(("Host", host) for host in hosts)
        await refused(it, (*names, GOOD[1]), 403, "unknown_host")
        origin = ("Origin", f"http://{hosts[0] if hosts else 'localhost:8001'}")
        await refused(it, (*names, GOOD[1], origin), 403, "unknown_host")


async def test_a_target_with_a_host_does_not_replace_the_host() -> None:
    """A whole URL as target: what the Host says still counts, and no page can send one."""
    async with guarded() as it:
        for change in changes(it):
            raw = change.raw(
                (("Host", "evil.example"), GOOD[1]), path=f"http://localhost:8001{change.path}"
            )
            assert (await ask(it, raw)).status == 403


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "_method"]
)
async def test_a_read_changes_nothing(name: str) -> None:
    """A GET is a GET whatever its headers, its query or its body want it to be.

    Pages can send those to anybody: as an image, a script or a link.
    """
    async with guarded() as it:
        before = await _settled(it)
        for path, methods in routes(it):
            for method in ("GET", "HEAD"):
                for verb in WRITES:
                    body = BODIES.get(path, b"{}")
                    lines = [
                        f"{method} {path}?{name}={verb}&control=base HTTP/1.1",
                        "Host: evil.example",
                        f"{name}: {verb}",
                        "Content-Type: application/json",
                        f"Content-Length: {len(body)}",
                    ]
                    response = await ask(it, "\r\n".join([*lines, "", ""]).encode() + body)
                    # FastAPI answers HEAD only where it was told to.
                    ok = method in methods
                    assert response.status in ({200, 503} if ok else {405}), (method, path)
        assert await _settled(it) == before


async def _settled(it: Rig) -> object:
    """The state, without what moves by itself."""
    state = json.loads((await ask(it, get("/admin/state"))).body)
    for upstream in state["upstreams"].values():
        del upstream["signal_age"]
    return state


async def test_a_method_override_on_a_write_is_none() -> None:
    """POST with an override is a POST, which these routes do not take."""
    async with guarded() as it:
        for path in list(BODIES)[:2]:
            raw = Change("POST", path).raw((*GOOD, ("X-HTTP-Method-Override", "PUT")))
            assert (await ask(it, raw)).status == 405


@pytest.mark.parametrize("origin", ["http://localhost:8001", "http://evil.example", "null"])
async def test_no_origin_is_ever_let_in(origin: str) -> None:
    """No answer, no error and no preflight here bears a CORS header, whatever asks on any route."""
    async with guarded(**_cors()) as it:
        asks = (("Origin", origin), ("Access-Control-Request-Method", "PUT"))
        wants = ("Access-Control-Request-Headers", "content-type, authorization")
        for path, methods in routes(it):
            for method in ("OPTIONS", "GET", "HEAD", *sorted(methods)):
                headers = GOOD if method in {"GET", "HEAD"} else GOOD[:1]
                raw = Change(method, path).raw((*headers, *asks, wants))
                response = await ask(it, raw)
                assert not _shared(response), (method, path)
                assert method in {"GET", "HEAD"} or response.status in {403, 405, 415}


def _cors() -> dict[str, object]:
    """CORS wide open on the endpoint, where this configuration knows of it."""
    from proxy.config.settings import SETTINGS  # noqa: PLC0415 - only here

    return {"listen.cors_origins": ["*"]} if "listen.cors_origins" in SETTINGS else {}


async def test_every_method_but_a_read_is_guarded_on_every_path() -> None:
    """Also paths and methods that no route has: the guard stands in front of the routes."""
    async with guarded() as it:
        paths = [path for path, _ in routes(it)]
        for path in (*paths, "/admin/later", "/docs", "/admin/control/", "//admin/control"):
            for method in (*WRITES, "OPTIONS", "TRACE", "QUERY", "PROPFIND"):
                raw = Change(method, path).raw((("Host", "evil.example"), GOOD[1]))
                assert (await ask(it, raw)).status == 403, (method, path)


async def test_an_upgrade_changes_nothing() -> None:
    """No WebSocket is spoken here, so none can carry an order past the guard."""
    async with guarded() as it:
        for path, _ in routes(it):
            lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
            lines += ["Host: localhost:8001", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
            raw = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()
            assert (await ask(it, raw)).status != 101


# The token -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Bearer {TOKEN[:-1]}",),
        (f"Bearer {TOKEN}x",),
        (f"Bearer {TOKEN.upper()}",),
        (f"Bearer {TOKEN} {TOKEN}",),
        (f"Bearer,{TOKEN}",),
        (f"Basic {TOKEN}",),
        (TOKEN,),
        ("Bearer schlüssel\xff",),
        ("Bearer " + "x" * 30_000,),
        (f"Bearer {TOKEN}", "Bearer x"),
        (f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
    ],
)
async def test_a_change_needs_the_token(given: tuple[str, ...]) -> None:
    """Where one is set, from loopback too: none, a part of it, another scheme or two are none."""
    async with guarded(auth__admin_token=TOKEN) as it:
        headers = (*GOOD, *(("Authorization", value) for value in given))
        await refused(it, headers, 401, "invalid_token")


async def test_where_a_token_is_not_looked_for() -> None:
    """Not in the query, not in a cookie, not in a client's headers; a client's key is no token."""
    async with guarded(auth__admin_token=TOKEN, auth__api_keys={"team": "sk-client"}) as it:
        for extra in (
            ("Cookie", f"token={TOKEN}"),
            ("x-api-key", TOKEN),
            ("Proxy-Authorization", f"Bearer {TOKEN}"),
            ("Authorization", "Bearer sk-client"),
        ):
            await refused(it, (*GOOD, extra), 401, "invalid_token")
        raw = Change("PUT", "/admin/control").raw(GOOD, path=f"/admin/control?token={TOKEN}")
        assert (await ask(it, raw)).status == 401


async def test_the_token_is_no_key_of_the_endpoint() -> None:
    """Each opens its own door only."""
    async with guarded(auth__admin_token=TOKEN, auth__api_keys={"team": "sk-client"}) as it:
        client = await it.client()
        client.send(post("/generate", {}, headers={"Authorization": f"Bearer {TOKEN}"}))
        assert (await client.response()).status == 401


async def test_the_token_is_not_enough_for_a_page() -> None:
    """A page that has learnt the token is still of another origin."""
    async with guarded(auth__admin_token=TOKEN) as it:
        token = ("Authorization", f"Bearer {TOKEN}")
        await refused(it, (*GOOD, token, ("Origin", "http://evil.example")), 403, "other_origin")
        await refused(it, (("Host", "evil.example"), GOOD[1], token), 403, "unknown_host")
        await refused(it, (GOOD[0], token), 415, "unsupported_media_type")


# Bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"base"',
        b'{"control": ' + b"[" * 30_000,
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"control": "base", "control": "nothing"}',
        b'{"control": "base", "more": 1}',
        b'{"control": "ba\\u0073e\\u0000"}',
        b'{"control": 1e999}',
        b'{"control": ' + b"9" * 5000 + b"}",
        b'{"control": NaN}',
        b"\xff\xfe{\x00",
        b"\xef\xbb\xbf{}",
        b'{"control": "\xff"}',
        b'{"control": "\\ud800"}',
        b"control=base",
    ],
)
async def test_odd_bodies_change_nothing(body: bytes) -> None:
    """Broken, deep, doubled, huge numbers, other encodings: a 4xx in our shape, never a 500."""
    async with guarded() as it:
        for change in changes(it):
            if change.path not in list(BODIES)[:2]:
                continue
            lines = [f"{change.method} {change.path} HTTP/1.1", "Host: localhost"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
            response = await ask(it, "\r\n".join(lines).encode() + body)
            assert 400 <= response.status < 500, body[:40]
            assert set(json.loads(response.body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("told", [True, False])
async def test_a_big_body_is_refused(told: bool) -> None:  # noqa: FBT001 - a parameter
    """Over the limit, its length told beforehand or not: 413, before it is all here."""
    async with guarded() as it:
        size = 2 * MAX_BODY_BYTES
        length = f"Content-Length: {size}" if told else "Transfer-Encoding: chunked"
        lines = ["PUT /admin/control HTTP/1.1", *(f"{name}: {value}" for name, value in GOOD)]
        async with await RawClient.connect(it.app.admin_port) as client:
            client.send("\r\n".join([*lines, length, "", ""]).encode())
            if not told:
                client.send(b"%x\r\n" % size + b" " * size)
            response = await client.response()
            assert response.status == 413
            assert response.code == ("body_too_large" if told else "invalid_request")


# Slow and many ---------------------------------------------------------------------------------

HEAD = b"PUT /admin/control HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STUCK = {
    "says nothing": b"",
    "half a head": HEAD,
    "half a body": HEAD + b'Content-Length: 19\r\n\r\n{"control"',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n13\r\n{",
    "then half a head": get("/livez") + HEAD,
    "then half a body": get("/livez") + HEAD + b"Content-Length: 19\r\n\r\n{",
}


async def _stick(it: Rig, raw: bytes) -> RawClient:
    client = await RawClient.connect(it.app.admin_port)
    it.clients.append(client)
    client.send(raw)
    return client


def _gone(clients: list[RawClient]) -> int:
    return sum(
        client.reader.at_eof() or client.reader.exception() is not None for client in clients
    )


@pytest.mark.parametrize("how", STUCK)
async def test_who_dribbles_is_cut(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has to come to its end in its time, wherever it has got stuck."""
    monkeypatch.setattr(patience, "SECONDS", 0.3)
    async with guarded() as it:
        client = await _stick(it, STUCK[how])
        if how.startswith("then"):
            assert (await client.response()).status == 200
        assert await client.at_end()


async def test_dribbling_on_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole request; a byte now and then does not lengthen it."""
    monkeypatch.setattr(patience, "SECONDS", 0.3)
    async with guarded() as it:
        client = await _stick(it, HEAD)
        ends = asyncio.get_running_loop().create_task(client.at_end())
        while not ends.done():
            client.send(b"X: y\r\n")
            await asyncio.wait({ends}, timeout=0.05)
        assert await ends


async def test_who_reads_no_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an answer wait for ever to be read."""
    monkeypatch.setattr(patience, "SECONDS", 0.3)
    async with guarded() as it:
        client = await _stick(it, b"")
        client.stop_reading()
        client.send(get("/metrics") * 400)
        await until(lambda: not _open(it), "it is cut")


def _open(it: Rig) -> int:
    """Connections that the admin listener has, by the kernel's book."""
    port = f":{it.app.admin_port:04X}"
    lines = [line.split() for line in _tcp().splitlines()[1:]]
    return sum(each[1].endswith(port) and each[3] == "01" for each in lines)


def _tcp() -> str:
    with open("/proc/self/net/tcp", encoding="ascii") as table:  # noqa: PTH123 - a page of the kernel
        return table.read()


async def test_a_head_without_end_is_cut() -> None:
    """The server below would keep all of it: a header of any size, or any number of them."""
    async with guarded() as it:
        for piece in (b"x" * 65536, b"X: y\r\n" * 10_000):
            client = await _stick(it, HEAD + b"X: ")
            gone = asyncio.get_running_loop().create_task(client.at_end())
            sent = 0
            while not gone.done():
                client.send(piece)
                sent += len(piece)
                await asyncio.wait({gone}, timeout=0.01)
                assert sent < 100 * patience.MAX_BYTES, "nobody minds"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["says nothing", "half a head", "half a body"])
async def test_300_stuck_connections_hurt_nobody(how: str) -> None:
    """Their number is bounded, the newest comes in, and the endpoint does not notice.

    The bound on a time is for a machine that others load as well; alone it takes 2 ms.
    """
    async with rig() as it:
        stuck = [await _stick(it, STUCK[how]) for _ in range(300)]
        await until(lambda: _gone(stuck) >= 300 - patience.MAX_CONNECTIONS, "those before are cut")
        assert _gone(stuck) == 300 - patience.MAX_CONNECTIONS
        assert _gone(stuck[:200]) == 200  # the oldest: to the millisecond, so some are of one age
        response = await ask(it, Change("PUT", "/admin/control").raw(GOOD))
        assert (response.status, it.app.dispatcher.control) == (200, Control.BASE)
        client = await it.client()
        took = []
        for _ in range(50):
            began = time.perf_counter()
            client.send(post("/generate", {}))
            assert (await client.response()).status == 200
            took.append(time.perf_counter() - began)
        assert sorted(took)[25] < 0.25
