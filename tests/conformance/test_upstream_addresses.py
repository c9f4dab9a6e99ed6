"""Upstreams by https, by IPv6, by name; and our own listeners: both planes reach them.

The data plane and the prober make their connections in different ways, so each test needs both: a
request is only sent to an upstream that the prober has found well.
"""

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import httpx2
import pytest
import trustme

from proxy.core.words import UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import DONE, ScriptedUpstream, Send, event, reply, stream

ASKING = post("/v1/chat/completions", CHAT)
STREAMED = stream(event({"choices": [{"delta": {"content": "ä"}}]}), DONE)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")


class PlacedUpstream(ScriptedUpstream):
    """A scripted upstream at another address than 127.0.0.1, or with TLS."""

    def __init__(
        self,
        *,
        speculative: bool,
        listen: str = "127.0.0.1",
        named: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        scheme: str | None = None,
    ) -> None:
        super().__init__(speculative=speculative)
        self._listen = listen
        self._named = named
        self._tls = tls
        self._scheme = scheme or ("http" if tls is None else "https")

    @property
    def url(self) -> str:
        """By the name that it is to be called."""
        return f"{self._scheme}://{self._named}:{self.port}"

    async def start(self) -> None:
        """Listen there."""
        self._server = await asyncio.start_server(
            self._serve, self._listen, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority of our own."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    """Its certificate as a file."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """The server side of TLS with a certificate for `names`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def served_by_spec(it: Rig) -> None:
    """A plain and a streamed request go to spec and come back whole, over a kept connection."""
    client = await it.client()
    it.spec.script(Send(reply(b'{"a":1}')))
    client.send(ASKING)
    response = await client.response()
    assert (response.status, response.body) == (200, b'{"a":1}')
    assert response.header("x-specswitch-upstream") == "spec"
    it.spec.script(Send(STREAMED))
    client.send(post("/v1/chat/completions", CHAT_STREAM))
    response = await client.response()
    assert response.complete
    assert b"".join(response.chunks).endswith(DONE)
    one, other = it.spec.requests
    assert one.connection == other.connection
    assert one.header("host") == it.spec.url.partition("://")[2]


async def speculating(it: Rig) -> None:
    """Wait until spec is in service and new requests go there."""
    await until(lambda: it.app.dispatcher.mode is UpstreamName.SPEC, "speculation is on")


# TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_an_https_upstream(name: str, authority: trustme.CA, ca_file: str) -> None:
    """With its authority in `ca_file` both planes speak TLS to it, by name or by address."""
    tls = certified(authority, name)
    spec = PlacedUpstream(speculative=True, named=name, tls=tls)
    async with rig(spec=spec, upstreams__spec__ca_file=ca_file) as it:
        await speculating(it)
        await served_by_spec(it)


async def test_a_connection_that_may_hide_unsent_bytes_is_not_kept(
    authority: trustme.CA, ca_file: str
) -> None:
    """The loop's TLS hides what is still to go of a large request: a fresh one each time."""
    spec = PlacedUpstream(speculative=True, tls=certified(authority, "127.0.0.1"))
    async with rig(spec=spec, upstreams__spec__ca_file=ca_file) as it:
        await speculating(it)
        client = await it.client()
        large = post("/v1/chat/completions", {**CHAT, "user": "u" * 100_000})
        for request in (large, ASKING, ASKING):
            client.send(request)
            assert (await client.response()).status == 200
        first, second, third = [request.connection for request in it.spec.requests]
        assert first != second == third


async def test_a_client_that_leaves_an_https_upstream(authority: trustme.CA, ca_file: str) -> None:
    """The engine is let go at once behind TLS too: no close of TLS is waited for."""
    spec = PlacedUpstream(speculative=True, tls=certified(authority, "127.0.0.1"))
    async with rig(spec=spec, upstreams__spec__ca_file=ca_file) as it:
        await speculating(it)
        it.spec.script()  # never answers
        client = await it.client()
        client.send(ASKING)
        (request,) = await it.spec.received(1)
        client.close()
        async with asyncio.timeout(5):
            await request.gone.wait()
        assert it.app.dispatcher.in_flight.total == 0


@pytest.mark.parametrize("fault", ["another name", "another authority", "no authority"])
async def test_an_upstream_that_proves_nothing_gets_nothing(
    fault: str, authority: trustme.CA, ca_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a good certificate it is no upstream: it is not used, and the log says why."""
    issuer = trustme.CA() if fault == "another authority" else authority
    named = "elsewhere.test" if fault == "another name" else "127.0.0.1"
    spec = PlacedUpstream(speculative=True, tls=certified(issuer, named))
    file = "" if fault == "no authority" else ca_file
    with caplog.at_level(logging.WARNING, "proxy"):
        async with rig(spec=spec, wait=False, upstreams__spec__ca_file=file) as it:
            await until(lambda: it.healthy(UpstreamName.BASE), "base is healthy")
            await until(lambda: "probe of spec failed" in caplog.text, "it is said")
            client = await it.client()
            client.send(ASKING)
            response = await client.response()
            assert response.header("x-specswitch-upstream") == "base"
            assert not it.spec.requests
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text or "certificate verify failed" in caplog.text


async def test_plain_http_to_an_https_upstream_is_a_failed_probe(authority: trustme.CA) -> None:
    """The wrong scheme is found by the prober; nothing hangs."""
    spec = PlacedUpstream(speculative=True, tls=certified(authority, "127.0.0.1"), scheme="http")
    async with rig(spec=spec, wait=False) as it:
        findings = it.app.links[UpstreamName.SPEC].prober.findings
        await until(lambda: findings.fault is not None, "the probe fails")
        await until(lambda: it.healthy(UpstreamName.BASE), "base is healthy")
        assert not it.healthy(UpstreamName.SPEC)


async def test_requests_check_certificates_by_themselves(
    authority: trustme.CA, ca_file: str
) -> None:
    """A server that changes hands between two probes gets no request: it goes to the other one."""
    tls = certified(authority, "127.0.0.1")
    spec = PlacedUpstream(speculative=True, tls=tls)
    async with rig(spec=spec, upstreams__spec__ca_file=ca_file, health__interval=5.0) as it:
        await speculating(it)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
        client = await it.client()
        client.send(ASKING)
        response = await client.response()
        assert response.header("x-specswitch-upstream") == "base"
        assert response.header("x-specswitch-reason") == "retry"
        assert not it.spec.requests


# IPv6 and names ------------------------------------------------------------------------------


@needs_ipv6
async def test_an_ipv6_upstream() -> None:
    """An upstream at [::1] is probed, served and named in the Host line with its brackets."""
    spec = PlacedUpstream(speculative=True, listen="::1", named="[::1]")
    async with rig(spec=spec) as it:
        await speculating(it)
        await served_by_spec(it)


async def test_an_upstream_by_name() -> None:
    """`localhost` is looked up, by both planes."""
    spec = PlacedUpstream(speculative=True, named="localhost")
    async with rig(spec=spec) as it:
        await speculating(it)
        await served_by_spec(it)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "::"])
async def test_ipv6_listeners(host: str) -> None:
    """Both listeners can be on IPv6, and say an address that answers."""
    async with (
        rig(listen__host=host, listen__admin_host=host, auth__admin_token="secret") as it,
        httpx2.AsyncClient(trust_env=False, verify=False) as client,
    ):
        assert it.app.url == f"http://[::1]:{it.app.port}"
        assert (await client.get(f"{it.app.url}/readyz")).status_code == 200
        assert (await client.get(f"{it.app.admin_url}/readyz")).status_code == 200
        answer = await client.post(f"{it.app.url}/v1/chat/completions", json=CHAT)
        assert answer.json() == {}


async def test_a_listener_by_name() -> None:
    """`localhost` as the address of both listeners."""
    async with (
        rig(listen__host="localhost", listen__admin_host="localhost") as it,
        httpx2.AsyncClient(trust_env=False, verify=False) as client,
    ):
        assert (await client.get(f"{it.app.url}/readyz")).status_code == 200
        assert (await client.get(f"{it.app.admin_url}/readyz")).status_code == 200
