"""An engine that is killed loses what was sent to it, and nothing that was not."""

import asyncio
from collections import Counter

import pytest

from proxy.core.words import Control, UpstreamName
from tests.harness.client import CHAT, post
from tests.harness.running import rig
from tests.harness.upstream import Gate, Send, Silence, reply

ASKING = post("/v1/chat/completions", CHAT)


@pytest.mark.parametrize("victim", list(UpstreamName))
async def test_who_was_not_sent_waits_for_the_other(victim: UpstreamName) -> None:
    """With the other full, too: those whose connection is refused go in front and are served.

    A connect that failed is retried where a place is free at once; else it waits for one, since
    nothing was sent.
    """
    caps = {victim: 2, victim.other: 1}
    async with rig(
        policy__control=victim.value,
        policy__allow_override=True,
        upstreams__spec__max_in_flight=caps[UpstreamName.SPEC],
        upstreams__base__max_in_flight=caps[UpstreamName.BASE],
    ) as it:
        dying, other = it.upstream(victim), it.upstream(victim.other)
        gate = asyncio.Event()
        it.app.pair.set_control(_word(victim.other), by="the test")
        other.script(Gate(gate), Send(reply(b"{}")))
        blocker = await it.client()
        blocker.send(ASKING)
        await other.received(1)
        it.app.pair.set_control(_word(victim), by="the test")
        dying.always(Silence())
        clients = [await it.client() for _ in range(8)]
        for client in clients:
            client.send(ASKING)
        await dying.received(2)
        if victim is UpstreamName.BASE:  # what spec has no room for goes to base, and waits there
            await it.until(lambda: len(it.app.dispatcher.room) == 6, "six wait")
        await dying.stop()
        gate.set()
        assert (await blocker.response()).status == 200
        statuses = Counter([(await client.response()).status for client in clients])
        assert statuses == {200: 6, 502: 2}
        assert len(dying.requests) == 2
        await dying.start()


def _word(name: UpstreamName) -> Control:
    return Control(name.value)
