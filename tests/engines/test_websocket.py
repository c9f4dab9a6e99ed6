"""`/v1/realtime` of a real server, by itself and through specswitch: the same events and ends.

SGLang's is for transcription only, and these models cannot transcribe: it opens the WebSocket, says
so in an event, and closes it with 1000. That is all that a tunnel has to be true to.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.engines.pair import EnginePair, wait_until
from tests.harness.process import Specswitch

KEY = "sk-right"
PATH = "/v1/realtime?model=tiny&intent=transcription"
_MADE_UP = re.compile(r"event_[0-9a-f]+")


@dataclass(frozen=True)
class Heard:
    """What a client hears: every event, and the end."""

    events: tuple[str, ...]
    code: int | None
    reason: str | None


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair, with a key of its own."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        auth_api_keys=f"team={KEY}",
    ) as process:
        yield process


async def heard(url: str, *, key: str = "") -> Heard:
    """All that is said of itself until it closes."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    there = url.replace("http", "ws", 1) + PATH
    async with connect(there, proxy=None, additional_headers=headers) as socket:
        async with asyncio.timeout(20):
            events = [str(event) async for event in socket]
    told = tuple(_MADE_UP.sub("event_", event) for event in events)
    return Heard(told, socket.close_code, socket.close_reason)


async def test_it_is_the_servers_own(engines: EnginePair, proxied: Specswitch) -> None:
    """Event by event, and the close."""
    direct = await heard(engines.base.url)
    assert direct.code == 1000
    assert "not_supported" in "".join(direct.events)
    assert await heard(proxied.url, key=KEY) == direct
    labels = {"endpoint": "/v1/realtime", "upstream": "base", "outcome": "ok"}
    await asyncio.to_thread(
        wait_until, lambda: proxied.metric("requests_total", **labels) == 1, "it is counted"
    )


async def test_a_key_is_asked_for_where_sglang_asks_for_none(
    engines: EnginePair, proxied: Specswitch
) -> None:
    """And may stand where a browser can put it; the server does not see it."""
    there = proxied.url.replace("http", "ws", 1) + PATH
    with pytest.raises(InvalidStatus) as refused:
        await heard(proxied.url)
    assert refused.value.response.status_code == 401
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    async with connect(there, proxy=None, subprotocols=offered) as socket:
        assert "not_supported" in await asyncio.wait_for(socket.recv(decode=True), 10)
    assert KEY not in engines.base.log.read_text(errors="replace")


async def test_without_base_it_is_specs(engines: EnginePair, proxied: Specswitch) -> None:
    """As any model path."""
    engines.kill(engines.base.name)
    direct = await heard(engines.spec.url)
    assert await heard(proxied.url, key=KEY) == direct


def test_audio_is_refused_in_the_servers_words(engines: EnginePair, proxied: Specswitch) -> None:
    """The form arrives whole: what the server makes of it is the same."""
    form = {"files": {"file": ("a.wav", b"RIFF\0\xff", "audio/wav")}, "data": {"model": "tiny"}}
    path = "/v1/audio/transcriptions"
    answers = [
        httpx2.post(
            url + path,
            **form,  # type: ignore[arg-type]  # httpx2's own
            headers={"authorization": f"Bearer {KEY}"},
            trust_env=False,
            timeout=30.0,
        )
        for url in (engines.base.url, proxied.url)
    ]
    direct, through = answers
    assert direct.status_code >= 400
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
