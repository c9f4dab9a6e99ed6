"""The one request of a probation: the others wait until it has spoken, not until it has ended."""

import asyncio

import pytest

from proxy.core.words import Health, UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, post
from tests.harness.running import rig
from tests.harness.upstream import DONE, END, STREAM_HEAD, Gate, Send, chunk, event, reply

SPEC = UpstreamName.SPEC
TOKEN = chunk(event({"choices": [{"delta": {"content": "a"}}]}))
ERROR = chunk(event({"error": {"message": "no", "code": 500}}))
FAILS = Send(reply(b"{}", status="500 Internal Server Error"))


@pytest.mark.parametrize(("said", "state"), [(TOKEN, Health.HEALTHY), (ERROR, Health.PROBATION)])
async def test_a_trial_is_judged_by_its_first_token(said: bytes, state: Health) -> None:
    """A stream may take an hour; an error event is no token."""
    async with rig(policy__control="spec", health__passive_failures=1, health__ejection=0.2) as it:
        it.spec.script(FAILS)
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT))
        assert (await client.response()).status == 500
        health = it.app.dispatcher.spec.health
        await it.until(lambda: health.state is Health.PROBATION, "it may be tried")
        gate = asyncio.Event()
        it.spec.script(Send(STREAM_HEAD + said), Gate(gate), Send(chunk(DONE) + END))
        client.send(post("/v1/chat/completions", CHAT_STREAM))
        assert (await client.head())[0] == 200
        assert health.state is state
        gate.set()
        while await client.chunk() is not None:
            pass
