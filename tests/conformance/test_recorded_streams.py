"""Recorded answers of SGLang 0.5.23 pass byte for byte, however the network cuts them."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.harness.client import CHAT_STREAM, post
from tests.harness.running import rig
from tests.harness.upstream import END, STREAM_HEAD, Gate, Send, chunk

RECORDED = {
    each.stem: each.read_bytes() for each in (Path(__file__).parent.parent / "data").glob("*.sse")
}
PATHS = {
    "generate": "/generate",
    "completion": "/v1/completions",
    "chat": "/v1/chat/completions",
    "queue": "/v1/chat/completions",
}


def path_of(name: str) -> str:
    """The path that a recording was an answer to."""
    return next(path for word, path in PATHS.items() if word in name)


def events_of(name: str) -> list[bytes]:
    """Its events, each whole."""
    return [each + b"\n\n" for each in RECORDED[name].split(b"\n\n") if each]


@pytest.mark.parametrize("name", sorted(RECORDED))
async def test_recorded_stream_event_by_event(name: str) -> None:
    """One event a chunk, as SGLang sends them: the same bytes in the same chunks."""
    events = events_of(name)
    async with rig(policy__control="base") as it:
        it.base.script(Send(STREAM_HEAD + b"".join(map(chunk, events)) + END))
        client = await it.client()
        client.send(post(path_of(name), CHAT_STREAM))
        response = await client.response()

        assert response.chunks == events
        assert response.body == RECORDED[name]
        assert response.complete


@pytest.mark.parametrize("name", sorted(RECORDED))
@pytest.mark.parametrize("seed", range(3))
async def test_recorded_stream_cut_anywhere(name: str, seed: int) -> None:
    """Cut anywhere, also within a chunk's size line: the same bytes, and the same usage counted."""
    wire = STREAM_HEAD + b"".join(map(chunk, events_of(name))) + END
    random = Random(seed)
    cuts = sorted(random.sample(range(1, len(wire)), 20))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    async with rig(policy__control="base") as it:
        gates = [asyncio.Event() for _ in pieces]
        steps = [
            step
            for piece, gate in zip(pieces, gates, strict=True)
            for step in (Send(piece), Gate(gate))
        ]
        it.base.script(*steps[:-1])
        client = await it.client()
        client.send(post(path_of(name), CHAT_STREAM))
        await it.base.received(1)
        for gate in gates:
            gate.set()
            await asyncio.sleep(0)  # the pieces leave one by one, each in a turn of its own
        response = await client.response()

        assert response.body == RECORDED[name]
        assert response.complete
        tokens = it.metric("output_tokens_total", upstream="base")
    assert tokens == await whole(name)


async def whole(name: str) -> float:
    """The tokens counted when the recording passes in one piece."""
    async with rig(policy__control="base") as it:
        it.base.script(Send(STREAM_HEAD + chunk(RECORDED[name]) + END))
        client = await it.client()
        client.send(post(path_of(name), CHAT_STREAM))
        await client.response()
        return it.metric("output_tokens_total", upstream="base")


def test_there_are_recordings() -> None:
    """Without recordings the tests above would test nothing."""
    assert len(RECORDED) >= 3
