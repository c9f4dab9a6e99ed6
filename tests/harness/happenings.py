"""What can happen to a request under test, each as one function of its `Subject`."""

import asyncio
from collections.abc import Awaitable, Callable

from proxy.core.words import UpstreamName
from tests.harness.stages import Subject

SHORT_SECONDS = 0.4
"""A deadline that is meant to pass, and long enough to get there on a busy machine."""


async def _client_fin(subject: Subject) -> None:
    subject.client.half_close()


async def _client_rst(subject: Subject) -> None:
    subject.client.reset()


async def _engine_fin(subject: Subject) -> None:
    if subject.engine is None:  # it takes no connection; now it is not there any more
        await subject.undo.aclose()
        await subject.it.spec.stop()
        return
    subject.engine.fin()
    subject.client.read_on()


async def _engine_rst(subject: Subject) -> None:
    assert subject.engine is not None
    subject.engine.reset()
    subject.client.read_on()


async def _engine_bad(subject: Subject) -> None:
    assert subject.engine is not None
    subject.engine.say(b"\x00 this is no HTTP\r\n\r\n")
    subject.client.read_on()


async def _late(subject: Subject) -> None:
    """Nothing happens until the deadline, which is short, has passed."""
    loop = asyncio.get_running_loop()
    due = loop.time() + 2 * SHORT_SECONDS
    await subject.it.until(lambda: loop.time() > due, "the deadline has passed")


async def _slow(subject: Subject) -> None:
    """The client goes on reading nothing until it is cut."""
    ours, all_of_them = subject.connection, subject.it.app.front.connections
    await subject.it.until(lambda: ours not in all_of_them, "it is cut")
    subject.client.read_on()


async def _drain(subject: Subject) -> None:
    if subject.beside is None and not subject.it.app.front.unfinished:
        await subject.beside_it()  # or it would be gone before the request can be led on
    subject.it.app.stop()
    stopped = subject.it.app.until_stopped()
    subject.ending = asyncio.get_running_loop().create_task(stopped)
    await subject.it.until(lambda: subject.it.app.dispatcher.draining, "it drains")


async def _cut(subject: Subject) -> None:
    """The drain is over, after its deadline or at the second signal; all is closed."""
    unfinished = subject.it.app.front.unfinished
    subject.it.app.stop()
    assert await asyncio.wait_for(subject.it.app.until_stopped(), 10) == (1 if unfinished else 0)
    await subject.it.end()
    subject.beside = None
    subject.client.read_on()


async def _kill(subject: Subject) -> None:
    subject.it.app.stop()
    await _cut(subject)


async def _control(subject: Subject) -> None:
    answer = await subject.it.admin("PUT", "/admin/control", {"control": "base"})
    assert answer.status == 200


async def _admin_drain(subject: Subject) -> None:
    await _admin_state(subject, "drain")


async def _admin_maint(subject: Subject) -> None:
    await _admin_state(subject, "maint")


def _engine_name(subject: Subject) -> UpstreamName:
    """The upstream where it is, or where it would be sent."""
    place = None if subject.connection._relay is None else subject.relay.account.place
    return UpstreamName.SPEC if place is None else place.upstream


async def _admin_state(subject: Subject, word: str) -> None:
    path = f"/admin/upstreams/{_engine_name(subject)}"
    assert (await subject.it.admin("PUT", path, {"admin_state": word})).status == 200


async def _other_down(subject: Subject) -> None:
    name = _engine_name(subject).other
    await subject.it.upstream(name).stop()
    await subject.it.until(lambda: not subject.it.healthy(name), "the other is ejected")


async def _ejected(subject: Subject) -> None:
    """Its own engine's probes fail, while the request goes on."""
    name = _engine_name(subject)
    subject.it.upstream(name).ready = False
    await subject.it.until(lambda: not subject.it.healthy(name), "it is ejected")


async def _reload(subject: Subject) -> None:
    """Everything that can be changed while it runs is: other thresholds, other limits, a key."""
    subject.it.keys["policy.crossover"] = 8.0
    subject.it.keys["timeouts.first_byte"] = 300.0
    subject.it.keys["auth.api_keys"] = {"late": "a-key-that-is-new"}
    assert (await subject.it.admin("POST", "/admin/reload")).status == 200


EVENTS: dict[str, Callable[[Subject], Awaitable[None]]] = {
    "client_fin": _client_fin,
    "client_rst": _client_rst,
    "engine_fin": _engine_fin,
    "engine_rst": _engine_rst,
    "engine_bad": _engine_bad,
    "late": _late,
    "slow": _slow,
    "drain": _drain,
    "cut": _cut,
    "kill": _kill,
    "control": _control,
    "adrain": _admin_drain,
    "maint": _admin_maint,
    "other": _other_down,
    "ejected": _ejected,
    "reload": _reload,
}
NEEDS: dict[str, dict[str, object]] = {
    "slow": {"limits__client_write": SHORT_SECONDS, "timeouts__client_keep_alive": SHORT_SECONDS},
    "cut": {"timeouts__drain": SHORT_SECONDS},
    "other": {"health__fall": 2},
    "ejected": {"health__fall": 2},
}
"""Configuration that an event needs."""
