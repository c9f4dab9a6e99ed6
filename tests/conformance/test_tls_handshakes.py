"""Handshakes with the endpoint that do not come about, and its certificate.

A failed handshake is an everyday matter: it costs a socket for a bounded time, and nobody a line.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from tests.harness.client import CHAT_STREAM, RawClient, get, post
from tests.harness.configs import findings
from tests.harness.tls import Identity, TlsClient, ask, secured, shaken
from tests.harness.upstream import (
    STREAM_HEAD,
    Send,
    Silence,
    chunk,
    event,
)

CHATTING = post("/v1/chat/completions", CHAT_STREAM)
ASKING = post("/generate", {"text": "a"})
FIRST = STREAM_HEAD + chunk(event({"choices": [{"delta": {"content": "a"}}]}))


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The endpoint's certificate."""
    return Identity(tmp_path_factory.mktemp("tls"))


def said_by_us(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What our own loggers have said, at `level` and above."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and record.name.startswith(("proxy", "asyncio"))
    ]


# Handshakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_an_unfinished_handshake_has_its_time(identity: Identity, said: bytes) -> None:
    """A client that never finishes its handshake costs a socket for `header_timeout`."""
    async with secured(identity, limits__header_timeout=0.2) as it:
        client = await it.client()
        client.send(said)
        await it.until(lambda: len(it.app.front.handshakes) == 1, "it is known")
        assert await client.at_end()
        await it.until(lambda: not it.app.front.handshakes, "it is forgotten")


async def test_a_head_has_its_time(identity: Identity) -> None:
    """After the handshake the head has `header_timeout` of its own, and then 408."""
    async with secured(identity, limits__header_timeout=0.2) as it:
        client = await shaken(it, identity)
        client.send(b"GET / HT")
        assert (await client.response()).status == 408


async def test_handshakes_are_bounded(identity: Identity) -> None:
    """Connections count before their handshake: some above the limit are told, others closed."""
    async with secured(identity, limits__max_connections=2) as it:
        it.app.front.told = 8
        silent = [await it.client() for _ in range(2 + 8 - 1)]
        await it.until(lambda: len(it.app.front.handshakes) == len(silent), "they are known")
        last = await shaken(it, identity)
        last.send(get("/livez"))
        assert (await last.response()).status == 200
        refused = await it.client()
        assert await refused.at_end()
        assert len(it.app.front.handshakes) == len(silent)


async def test_one_connection_too_many_is_told(identity: Identity) -> None:
    """Above `max_connections` a client gets its 429 by TLS."""
    async with secured(identity, limits__max_connections=1) as it:
        await shaken(it, identity)
        await it.until(lambda: len(it.app.front.connections) == 1, "one is there")
        late = await shaken(it, identity)
        response = await late.response()
        assert response.code == "overloaded"
        assert response.header("retry-after") == "1"
        assert await late.at_end()


NOISE: dict[str, bytes] = {
    "no TLS": b"\x00" * 100,
    "an unknown method": b"BREW /pot HTTP/1.1\r\n\r\n",
    "SSL 2": bytes.fromhex("802e01000200150000001001008003") + b"\x00" * 60,
    "a broken record": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" + b"\xff" * 50,
}


@pytest.mark.parametrize("said", NOISE.values(), ids=list(NOISE))
async def test_what_is_no_tls_ends_quickly(
    identity: Identity, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed at once, without a traceback and without a line."""
    caplog.set_level(logging.DEBUG)
    async with secured(identity) as it:
        caplog.clear()
        for _ in range(5):
            client = await it.client()
            client.send(said)
            await _read_to_end(client)
        assert said_by_us(caplog, logging.INFO) == []


async def _read_to_end(client: RawClient) -> None:
    async with asyncio.timeout(5):
        try:
            await client.reader.read(-1)
        except ConnectionError:
            return


@pytest.mark.parametrize("request_bytes", [get("/v1/models"), ASKING])
async def test_plain_http_is_told(
    identity: Identity, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP without TLS gets 400 in HTTP, counted as a request that was refused."""
    async with secured(identity) as it:
        client = await it.client()
        client.send(request_bytes)
        response = await client.response()
        assert response.status == 400
        assert response.code == "bad_request"
        assert "HTTPS" in response.body.decode()
        assert it.metric("requests_total", upstream="none", endpoint="other", outcome="rejected")
        assert said_by_us(caplog, logging.WARNING) == []


async def test_plain_http_above_the_limit_is_told_once(identity: Identity) -> None:
    """Who is one too many and without TLS gets one answer, not two."""
    async with secured(identity, limits__max_connections=1) as it:
        await shaken(it, identity)
        await it.until(lambda: len(it.app.front.connections) == 1, "one is there")
        client = await it.client()
        client.send(get("/"))
        assert (await client.response()).code == "overloaded"
        assert await client.at_end()
        assert it.total("requests_total", outcome="rejected") == 1


async def test_a_client_that_does_not_trust_us_makes_no_noise(
    identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    """A handshake that the client breaks off is its own affair."""
    async with secured(identity) as it:
        with pytest.raises(ssl.SSLCertVerificationError):
            await TlsClient.shaken(it.app.port, ssl.create_default_context())
        await it.until(lambda: not it.app.front.handshakes, "it is forgotten")
        assert said_by_us(caplog, logging.WARNING) == []


async def test_garbage_after_the_handshake(identity: Identity) -> None:
    """What is no TLS any more ends the connection, and its engine's with it."""
    async with secured(identity) as it:
        client = await ask(it, identity, CHATTING, Send(FIRST), Silence())
        (request,) = await it.spec.received(1)
        client.send_plainly(b"GET / HTTP/1.1\r\n\r\n" * 10)
        await asyncio.wait_for(request.gone.wait(), 2)


# The certificate -------------------------------------------------------------------------------


async def test_a_rotated_certificate(identity: Identity, tmp_path: Path) -> None:
    """Loaded anew, it is what the next client sees; who is connected stays."""
    first, second = Identity(tmp_path, "first"), Identity(tmp_path, "second")
    async with secured(first) as it:
        early = await shaken(it, first)
        first.cert.write_bytes(second.cert.read_bytes())
        first.key.write_bytes(second.key.read_bytes())
        assert it.app.certificate is not None
        it.app.certificate.context = it.app.certificate.read()
        late = await shaken(it, second)
        for client in (early, late):
            client.send(get("/livez"))
            assert (await client.response()).status == 200


async def test_a_bad_certificate_changes_nothing(tmp_path: Path) -> None:
    """Half of a rotation, or rubbish, is refused by name; the old certificate serves on."""
    own, other = Identity(tmp_path, "own"), Identity(tmp_path, "other")
    async with secured(own) as it:
        certificate = it.app.certificate
        assert certificate is not None
        own.key.write_bytes(other.key.read_bytes())
        with pytest.raises(ConfigError) as raised:
            certificate.read()
        assert raised.value.findings[0][0] == "listen.tls_key"
        own.cert.write_bytes(b"no certificate")
        with pytest.raises(ConfigError):
            certificate.read()
        client = await shaken(it, own)
        client.send(get("/livez"))
        assert (await client.response()).status == 200


def _encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as forms  # noqa: PLC0415 - once

    key = forms.load_pem_private_key(pem, None)
    return key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"secret")
    )


WRONG_FILES: dict[str, tuple[Callable[[Identity, Identity], None], str]] = {
    "another's key": (lambda own, other: _copy(other.key, own.key), "listen.tls_key"),
    "no key": (lambda own, _: _put(own.key, b"rubbish"), "listen.tls_key"),
    "an encrypted key": (
        lambda own, _: _put(own.key, _encrypted(own.key.read_bytes())),
        "listen.tls_key",
    ),
    "no file for the key": (lambda own, _: own.key.unlink(), "listen.tls_key"),
    "no certificate": (lambda own, _: _put(own.cert, b"rubbish"), "listen.tls_cert"),
    "no file for the certificate": (lambda own, _: own.cert.unlink(), "listen.tls_cert"),
}


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _copy(source: Path, target: Path) -> None:
    _put(target, source.read_bytes())


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_wrong_files_are_findings(tmp_path: Path, wrong: str) -> None:
    """What cannot be used is said at start, by its path in the file."""
    spoil, path = WRONG_FILES[wrong]
    own, other = Identity(tmp_path, "own"), Identity(tmp_path, "other")
    spoil(own, other)
    keys = {"listen.tls_cert": str(own.cert), "listen.tls_key": str(own.key)}
    assert [found for found, _ in findings(overrides=keys)] == [path]


async def test_a_client_that_connects_and_leaves(identity: Identity) -> None:
    """A port scan leaves nothing behind: neither FIN nor RST before the handshake."""
    async with secured(identity) as it:
        for how in ("half_close", "reset", "close"):
            client = await it.client()
            await it.until(lambda: len(it.app.front.handshakes) == 1, "it is known")
            getattr(client, how)()
            await it.until(lambda: not it.app.front.handshakes, "it is forgotten")
