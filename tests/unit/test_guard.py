"""Who may change something through the admin listener: each way in that must stay shut."""

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from proxy.control.guard import Guard

APP = PlainTextResponse("let through")
JSON = {"content-type": "application/json"}

Pairs = list[tuple[str, str]]


async def ask(headers: Pairs, *, method: str = "PUT", token: str | None = None) -> httpx2.Response:
    """What the guard answers to a request with exactly these headers."""
    guard = Guard(APP, token=lambda: token, known_hosts={"Admin.example", "::"})
    transport = httpx2.ASGITransport(app=guard)
    async with httpx2.AsyncClient(transport=transport) as client:
        request = httpx2.Request(method, "http://unused/admin/control", headers=headers)
        if not any(name == "host" for name, _ in headers):
            del request.headers["host"]
        return await client.send(request)


def meant(host: str = "localhost:8001") -> Pairs:
    """The headers of a change that is meant."""
    return [("host", host), ("content-type", "application/json")]


async def code_of(headers: Pairs, *, token: str | None = None) -> tuple[int, str]:
    """Status and code of a refusal."""
    answer = await ask(headers, token=token)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return answer.status_code, error["code"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_reads_pass(method: str) -> None:
    """They change nothing and hold no secret."""
    assert (await ask([("host", "evil.example")], method=method, token="t")).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "ANYTHING"])
async def test_every_other_method_is_guarded(method: str) -> None:
    """Also those of routes that do not exist yet."""
    assert (await ask([("host", "evil.example")], method=method)).status_code == 403


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8001",
        "127.0.0.1:8001",
        "10.1.2.3",
        "[::1]:8001",
        "[fe80::1]",
        "admin.example:8001",
    ],
)
async def test_known_hosts_pass(host: str) -> None:
    """An IP literal cannot be a name that somebody made lead here."""
    assert (await ask(meant(host))).text == "let through"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil@localhost",
        "localhost/x",
        "localhost:x",
        "[::1",
        "[evil.example]",
        "::1",
        "",
        " ",
    ],
)
async def test_unknown_hosts_do_not(host: str) -> None:
    """A page whose name leads to 127.0.0.1 (DNS rebinding) still sends its own name."""
    assert await code_of(meant(host)) == (403, "unknown_host")


async def test_exactly_one_host_is_needed() -> None:
    """Two could be read in two ways."""
    assert await code_of([*meant()[1:]]) == (403, "unknown_host")
    assert await code_of([("host", "evil.example"), *meant()]) == (403, "unknown_host")


@pytest.mark.parametrize("origin", ["http://localhost:8001", "https://LocalHost:8001"])
async def test_the_same_origin_passes(origin: str) -> None:
    """Our own status page is one."""
    assert (await ask([*meant(), ("origin", origin)])).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://localhost",
        "http://localhost:8000",
        "http://evil.example",
        "file://localhost:8001",
        "localhost:8001",
    ],
)
async def test_another_origin_does_not(origin: str) -> None:
    """`null` is what a sandboxed page or a local file sends."""
    assert await code_of([*meant(), ("origin", origin)]) == (403, "other_origin")


async def test_two_origins_do_not() -> None:
    """No browser sends two."""
    origins = [("origin", "http://localhost:8001"), ("origin", "http://evil.example")]

    assert await code_of([*meant(), *origins]) == (403, "other_origin")


@pytest.mark.parametrize("given", ["Bearer s3cret", "bearer  s3cret "])
async def test_the_token_passes(given: str) -> None:
    """The scheme's case does not matter."""
    assert (await ask([*meant(), ("authorization", given)], token="s3cret")).status_code == 200


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer s3cre", "Basic s3cret", "s3cret"])
async def test_a_wrong_token_does_not(given: str | None) -> None:
    """None, another one, and the right one under another scheme."""
    headers = meant() if given is None else [*meant(), ("authorization", given)]

    answer = await ask(headers, token="s3cret")

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_token")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "s3cret" not in answer.text


async def test_a_token_may_have_any_character() -> None:
    """Headers are bytes; the comparison is one of bytes."""
    transport = httpx2.ASGITransport(app=Guard(APP, token=lambda: "schlüssel", known_hosts=()))
    async with httpx2.AsyncClient(transport=transport) as client:
        headers = {b"authorization": "Bearer schlüssel".encode(), **_as_bytes(JSON)}

        answer = await client.put("http://localhost/x", headers=list(headers.items()))

    assert answer.status_code == 200


def _as_bytes(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_passes(kind: str) -> None:
    """A page cannot send it elsewhere without asking first, which nobody answers."""
    assert (await ask([("host", "localhost"), ("content-type", kind)])).status_code == 200


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
async def test_what_a_form_can_send_does_not(kind: str | None) -> None:
    """A form on any page could send it here."""
    headers = [("host", "localhost")]
    if kind is not None:
        headers.append(("content-type", kind))

    assert await code_of(headers) == (415, "unsupported_media_type")


@pytest.mark.parametrize("length", ["0", "65536", "0000000065536"])
async def test_a_short_body_passes(length: str) -> None:
    """A change is a line of JSON."""
    assert (await ask([*meant(), ("content-length", length)])).status_code == 200


@pytest.mark.parametrize("length", ["65537", "9" * 5000, "-1", "x", ""])
async def test_a_long_body_does_not(length: str) -> None:
    """Nor one whose length is none."""
    assert await code_of([*meant(), ("content-length", length)]) == (413, "body_too_large")
