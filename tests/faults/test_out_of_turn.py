"""An engine that says something after its answer: never the answer to the next request."""

import os
import select
from typing import cast

import pytest

from proxy.core.words import UpstreamName
from proxy.data.pool import Connecting
from proxy.data.upstream import Sink
from tests.harness.client import CHAT, post
from tests.harness.running import rig
from tests.harness.upstream import ByHand, reply
from tests.harness.wire import Wire

ASKING = post("/v1/chat/completions", CHAT)


@pytest.mark.parametrize("first", ["client", "engine"])
async def test_what_comes_in_the_turn_of_the_next_request(first: str) -> None:
    """Whichever of both the loop looks at first, the next request goes over another connection."""
    async with rig() as it:
        it.spec.always(ByHand())
        client = await it.client()
        for number in range(1, 21):
            client.send(ASKING)
            request = (await it.spec.received(2 * number - 1))[-1]
            request.say(reply(b"right"))
            request.over()
            assert (await client.response()).body == b"right"
            if first == "client":
                client.send(ASKING)
                request.say(reply(b"no"))
            else:
                request.say(reply(b"no"))
                client.send(ASKING)
            again = (await it.spec.received(2 * number))[-1]
            assert again.connection != request.connection
            again.say(reply(b"right"))
            again.over()
            assert (await client.response()).body == b"right"


async def test_a_kept_connection_on_which_something_waits_is_not_used() -> None:
    """It is closed, and another is made."""
    wire = Wire()
    pool = wire.pools[UpstreamName.SPEC]
    (kept,) = pool._idle
    waiting = os.eventfd(1)
    try:
        kept._waiting.register(waiting, select.POLLIN)
        found = pool.obtain(cast("Sink", None), fresh=False)
    finally:
        os.close(waiting)
    assert isinstance(found, Connecting)
    assert wire.engine.aborts == 1
    found.drop()
