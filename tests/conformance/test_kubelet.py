"""The admin listener as a kubelet, Prometheus and an operator in a cluster ask it.

They come to the pod's address, so the Host is an IP address that specswitch was never told of. The
listener is on a loopback address that is not the usual one, in place of a pod's.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.harness.client import CHAT_STREAM, RawClient, post
from tests.harness.process import Specswitch
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Send,
    chunk,
    event,
)

pytestmark = pytest.mark.slow

POD_ADDRESS = "127.0.0.2"
TOKEN = "a-token"
HOSTS = ["10.244.1.7:8001", "[fd00:10:244::7]:8001", "127.0.0.2:8001"]
PROBE = {"user-agent": "kube-probe/1.37", "connection": "close", "accept": "*/*"}


@asynccontextmanager
async def in_a_pod(tmp_path: Path) -> AsyncIterator[tuple[Specswitch, ScriptedUpstream]]:
    """A specswitch with what deploy/kubernetes sets, and its base."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    async with spec, base:
        it = Specswitch(
            tmp_path / "specswitch.log",
            spec_url=spec.url,
            base_url=base.url,
            listen_admin_host=POD_ADDRESS,
            auth_admin_token=TOKEN,
            health_interval=0.2,
        )
        it.admin_url = f"http://{POD_ADDRESS}:{it.admin_port}"
        async with it:
            yield it, base


async def asked(it: Specswitch, path: str, **headers: str) -> httpx2.Response:
    """GET of the admin listener."""
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        return await client.get(f"{it.admin_url}{path}", headers=headers)


async def told(it: Specswitch, **headers: str) -> int:
    """The status of PUT /admin/control."""
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        url = f"{it.admin_url}/admin/control"
        return (await client.put(url, headers=headers, json={"control": "base"})).status_code


async def test_probes_and_scrapes_by_the_address_of_the_pod(tmp_path: Path) -> None:
    """They are answered under whatever Host, without a token."""
    async with in_a_pod(tmp_path) as (it, _):
        for host in (*HOSTS, "specswitch.specswitch.svc:8001"):
            for path in ("/livez", "/readyz", "/metrics"):
                answer = await asked(it, path, host=host, **PROBE)
                assert answer.status_code == httpx2.codes.OK, (host, path)
        assert "specswitch_build_info" in answer.text


async def test_changes_by_the_address_of_the_pod(tmp_path: Path) -> None:
    """With the token by any address, without it by none; a name that was not told of is no Host."""
    token = {"authorization": f"Bearer {TOKEN}"}
    async with in_a_pod(tmp_path) as (it, _):
        for host in HOSTS:
            assert await told(it, host=host) == httpx2.codes.UNAUTHORIZED
            assert await told(it, host=host, **token) == httpx2.codes.OK
        name = "specswitch.specswitch.svc:8001"
        assert await told(it, host=name, **token) == httpx2.codes.FORBIDDEN


async def test_probes_while_it_drains(tmp_path: Path) -> None:
    """It lives until the last stream has ended, and is not ready from the first moment on."""
    gate = asyncio.Event()
    async with in_a_pod(tmp_path) as (it, base):
        first = chunk(event({"choices": [{"delta": {"content": "a"}}]}))
        base.script(Send(STREAM_HEAD + first), Gate(gate), Send(chunk(DONE) + END))
        async with await RawClient.connect(it.port) as client:
            client.send(post("/v1/chat/completions", CHAT_STREAM))
            assert (await client.head())[0] == httpx2.codes.OK
            assert await client.chunk() is not None
            it.send(signal.SIGTERM)
            async with asyncio.timeout(20):
                while (await asked(it, "/readyz", **PROBE)).status_code == httpx2.codes.OK:
                    continue
            assert (await asked(it, "/livez", **PROBE)).status_code == httpx2.codes.OK
            gate.set()
            while await client.chunk() is not None:
                continue
        assert await asyncio.to_thread(it.ended) == 0
