"""A reload: all of it or nothing, no stream cut, the operator's word kept."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
import trustme

from proxy.calibration import Calibration, Servers, dump
from proxy.config import Config
from proxy.core.fingerprint import fingerprint_of
from proxy.core.words import Control, Health, UpstreamName
from proxy.errors import ConfigError
from tests.harness.calibrations import FOUNDING
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, get, post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Send,
    chunk,
    event,
    reply,
)

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
ASKING = post("/v1/chat/completions", CHAT)
STREAMING = post("/v1/chat/completions", CHAT_STREAM)
TOKEN = event({"choices": [{"delta": {"content": "a"}}]})


async def streaming(it: Rig, gate: asyncio.Event) -> RawClient:
    """A client in the middle of a stream from spec, which goes on when `gate` opens."""
    it.spec.script(Send(STREAM_HEAD + chunk(TOKEN)), Gate(gate), Send(chunk(DONE) + END))
    client = await it.client()
    client.send(STREAMING)
    status, _ = await client.head()
    assert status == 200
    return client


async def _to_its_end(client: RawClient) -> None:
    while await client.chunk() is not None:
        pass


async def served_by(it: Rig) -> str | None:
    """Who answers a chat."""
    client = await it.client()
    client.send(ASKING)
    return (await client.response()).header("x-specswitch-upstream")


async def test_streams_outlive_a_reload() -> None:
    """200 streams, and every key that can change has changed: none is cut, each ends well."""
    async with rig(policy__crossover=500.0, upstreams__spec__max_in_flight=0) as it:
        gate = asyncio.Event()
        clients = [await streaming(it, gate) for _ in range(200)]
        it.keys |= {
            "policy.crossover": 2.0,
            "limits.max_in_flight": 10,
            "limits.queue_size": 1,
            "timeouts.between_chunks": 1.0,
            "auth.api_keys": {"new": "k"},
            "health.interval": 0.1,
            "upstreams.spec.api_key": "another",
        }
        changed = await it.app.reload()
        assert set(changed) == {
            "policy.crossover",
            "limits.max_in_flight",
            "limits.queue_size",
            "timeouts.between_chunks",
            "auth.api_keys",
            "health.interval",
            "upstreams.spec.api_key",
        }
        gate.set()
        for client in clients:
            assert await client.chunk() == TOKEN
            assert await client.chunk() == DONE
            assert await client.chunk() is None


async def test_a_reload_that_fails_changes_nothing() -> None:
    """Every finding is told, the counter moves, and the configuration is the one of before."""
    async with rig() as it:
        before = it.app.config
        it.keys |= {"policy.crossover": -1.0, "limits.queue_size": -5, "auth.api_keys": {"a": "b"}}
        with pytest.raises(ConfigError) as raised:
            await it.app.reload()
        paths = [path for path, _ in raised.value.findings]
        assert paths == ["policy.crossover", "limits.queue_size"]
        assert it.app.config is before
        assert it.metric("config_reloads_total", result="rejected") == 1
        assert await served_by(it) == "spec"  # no key is asked for


@pytest.mark.parametrize("key", ["listen.port", "listen.admin_host", "listen.admin_hosts"])
async def test_listeners_are_opened_once(key: str) -> None:
    """A change of `listen.*` is refused by name, with all else that would have changed."""
    values = {"listen.port": 1234, "listen.admin_host": "::1", "listen.admin_hosts": ["x.example"]}
    async with rig() as it:
        it.keys |= {key: values[key], "policy.crossover": 9.0}
        with pytest.raises(ConfigError) as raised:
            await it.app.reload()
        assert raised.value.findings == ((key, "cannot be changed by a reload; restart for it"),)
        assert it.app.dispatcher.settings.thresholds.crossover == 4.0


async def test_the_pools_go_by_the_timeouts_of_now() -> None:
    """How long a connection may be in the making and is kept, beside what requests go by."""
    async with rig(timeouts__connect=1.0) as it:
        it.keys |= {"timeouts.connect": 0.5, "timeouts.idle_connection": 1.5}
        await it.app.reload()
        for name in UpstreamName:
            assert it.app.links[name].pool.timeouts == it.app.front.timeouts
            assert it.app.links[name].pool.timeouts.connect == 0.5


async def test_without_a_source_there_is_no_reload() -> None:
    """A pair that was made from values says so."""
    async with rig() as it:
        it.app._load = None
        with pytest.raises(ConfigError, match="no configuration to read again"):
            await it.app.reload()


async def test_another_url_is_another_server() -> None:
    """New requests go there once it is well; old streams end where they are."""
    prompt = rig(policy__return_dwell=0.0, policy__count_window=0.01)
    async with prompt as it, ScriptedUpstream(speculative=True) as other:
        gate = asyncio.Event()
        old = await streaming(it, gate)
        it.keys["upstreams.spec.url"] = other.url
        assert await it.app.reload() == ("upstreams.spec.url",)
        assert it.app.dispatcher.spec.health.state is Health.EJECTED
        assert it.app.dispatcher.in_flight.spec == 1
        await until(lambda: it.healthy(SPEC), "the new server is healthy")
        await until(lambda: it.app.dispatcher.mode is SPEC, "speculation is back")
        assert await served_by(it) == "spec"
        assert len(other.requests) == 1
        gate.set()
        assert [await old.chunk(), await old.chunk(), await old.chunk()] == [TOKEN, DONE, None]
        await until(lambda: not it.app.links.retired, "nothing is left of the old server")
        assert it.spec.open_connections == 0


async def test_what_fails_at_the_old_server_says_nothing_of_the_new() -> None:
    """Its streams break off, and the new one stays healthy."""
    async with rig(health__passive_failures=1) as it, ScriptedUpstream(speculative=True) as other:
        gate = asyncio.Event()
        old = await streaming(it, gate)
        it.keys["upstreams.spec.url"] = other.url
        await it.app.reload()
        await until(lambda: it.healthy(SPEC), "the new server is healthy")
        await it.spec.stop()
        with pytest.raises(ConnectionError):
            await _to_its_end(old)
        assert it.healthy(SPEC)
        await it.spec.start()


async def test_a_stale_connection_is_replaced_where_its_place_is() -> None:
    """A key for the new server never goes to the old one, nor a request of the old to the new."""
    async with rig(upstreams__spec__api_key="old") as it:
        assert await served_by(it) == "spec"
        it.keys["upstreams.spec.api_key"] = "new"
        await it.app.reload()
        assert await served_by(it) == "spec"
        keys = [request.header("authorization") for request in it.spec.requests]
        assert keys == ["Bearer old", "Bearer new"]


async def test_the_operators_word_survives() -> None:
    """What was said by hand stays; what the configuration said is said anew."""
    async with rig() as it:
        it.keys["policy.control"] = "base"
        await it.app.reload()
        controls = [it.app.dispatcher.control]
        it.app.pair.set_control(Control.SPEC, by="admin")
        it.keys["policy.control"] = "observe"
        await it.app.reload()
        controls.append(it.app.dispatcher.control)
        assert controls == [Control.BASE, Control.SPEC]
        assert it.app.dispatcher.control_set_by == "admin"


async def test_limits_hold_for_connections_that_are_open() -> None:
    """A kept connection's next request is read by the new limits, and needs the new key."""
    async with rig() as it:
        client = await it.client()
        client.send(ASKING)
        assert (await client.response()).status == 200
        it.keys |= {"limits.max_body_bytes": 10, "limits.max_buffered_bytes": 10}
        await it.app.reload()
        client.send(ASKING)
        assert (await client.response()).status == 413
        it.keys["auth.api_keys"] = {"one": "k"}
        await it.app.reload()
        another = await it.client()
        another.send(get("/v1/models"))
        assert (await another.response()).status == 401


async def test_the_admin_listener_reloads() -> None:
    """POST /admin/reload tells what changed; a refused one answers 422 with every path."""
    async with rig() as it:
        it.keys["policy.crossover"] = 7.0
        response = await it.admin("POST", "/admin/reload")
        assert response.status == 200
        assert json.loads(response.body) == {"changed": ["policy.crossover"]}
        it.keys["policy.crossover"] = -7.0
        response = await it.admin("POST", "/admin/reload")
        assert response.status == 422
        (error,) = json.loads(response.body)["errors"]
        assert error["path"] == "policy.crossover"


async def test_a_fault_of_ours_in_a_reload_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A signal's reload that fails within specswitch is logged, and what is served goes on."""
    async with rig() as it:

        def broken() -> None:
            raise RuntimeError("broken")

        it.app._load = broken  # type: ignore[assignment]
        it.app.reload_soon()
        await until(lambda: "a reload failed within specswitch" in caplog.text, "it is said")
        assert await served_by(it) == "spec"


async def test_answers_in_a_retired_pool_close_their_connection() -> None:
    """A connection to a server that is replaced is not kept after its answer."""
    async with rig() as it, ScriptedUpstream(speculative=True) as other:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(b"{}")))
        client = await it.client()
        client.send(ASKING)
        await it.spec.received(1)
        it.keys["upstreams.spec.url"] = other.url
        await it.app.reload()
        gate.set()
        assert (await client.response()).status == 200
        await until(lambda: it.spec.open_connections == 0, "it is closed")


async def test_a_reload_does_not_outlive_its_process() -> None:
    """One that is reading when we go down changes nothing, and starts nothing that nobody ends."""
    async with rig() as it:
        app, source = it.app, it.app._load
        assert source is not None
        reading, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow() -> Config:
            loop.call_soon_threadsafe(reading.set)
            go_on.wait(10)
            return source()

        app._load = slow
        it.keys["upstreams.spec.url"] = "http://127.0.0.1:1"
        told = loop.create_task(app.reload())
        await reading.wait()
        app.ending = True
        go_on.set()
        with pytest.raises(ConfigError, match="shutting down"):
            await told
        assert it.app.config.upstreams.spec.url.port != 1
        assert it.metric("config_reloads_total", result="rejected") == 1
        app.ending = False


async def test_a_fault_of_ours_counts_as_refused() -> None:
    """The counters of reloads add up to the reloads."""
    async with rig() as it:

        def broken() -> Config:
            raise RuntimeError("broken")

        it.app._load = broken
        with pytest.raises(RuntimeError):
            await it.app.reload()
        assert it.metric("config_reloads_total", result="rejected") == 1


async def test_a_file_of_certificates_is_read_again(tmp_path: Path) -> None:
    """Its name has not changed, what it holds may have: the link is made anew, health stays."""
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    keys = {"upstreams.spec.url": "https://127.0.0.1:1", "upstreams.spec.ca_file": str(authority)}
    async with rig(wait=False) as it:
        it.keys |= keys
        await it.app.reload()
        link, health = it.app.links[SPEC], it.app.dispatcher.spec.health
        assert await it.app.reload() == ()
        assert it.app.links[SPEC] is not link
        assert it.app.dispatcher.spec.health is health


@pytest.mark.parametrize("key", ["auth.api_keys", "auth.admin_token"])
async def test_a_reload_does_not_open_what_was_closed(key: str) -> None:
    """An emptied file, as an editor leaves it for a moment, must not do away with keys."""
    values: dict[str, object] = {"auth.api_keys": {"a": "k"}, "auth.admin_token": "secret"}
    async with rig(**{key.replace(".", "__"): values[key]}) as it:  # type: ignore[arg-type]
        del it.keys[key]
        with pytest.raises(ConfigError, match="would be empty") as raised:
            await it.app.reload()
        assert raised.value.findings[0][0] == key
        client = await it.client()
        client.send(ASKING)
        assert (await client.response()).status == (401 if key == "auth.api_keys" else 200)


async def test_a_file_that_hangs_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to, a network that is gone: refused, and the next one is read."""
    monkeypatch.setattr("proxy.reload.READ_SECONDS", 0.1)
    async with rig() as it:
        source, never = it.app._load, threading.Event()
        assert source is not None

        def hangs() -> Config:
            never.wait(20)
            raise RuntimeError("too late")

        it.app._load = hangs
        with pytest.raises(ConfigError, match="could not be read within"):
            await it.app.reload()
        it.app._load = source
        assert await it.app.reload() == ()
        never.set()


# Calibration


def of_this_pair(it: Rig) -> Calibration:
    """One that was made on the pair that is there."""
    servers = {}
    for name in UpstreamName:
        identity = it.app.dispatcher.upstream(name).identity
        assert identity is not None
        found = FOUNDING.server(name)
        servers[name.value] = found.model_copy(update={"fingerprint": fingerprint_of(identity)})
    return FOUNDING.model_copy(update={"servers": Servers(**servers)})


async def test_a_calibration_that_was_made_meanwhile_is_gone_by(tmp_path: Path) -> None:
    """The same key names another content: it counts as changed, and speculation begins."""
    file = tmp_path / "calibration.json"
    async with rig(policy__crossover=0.0, policy__calibration=str(file)) as it:
        assert await served_by(it) == "base"
        file.write_text(dump(of_this_pair(it)), encoding="utf-8")
        assert await it.app.reload() == ("policy.calibration",)
        assert await served_by(it) == "spec"
        assert it.metric("crossover_in_flight") == 3.1
        assert it.metric("crossover_tokens_per_second") == 232.0
        assert it.metric("calibration_valid") == 1
        assert await it.app.reload() == ()
        file.unlink()
        with pytest.raises(ConfigError, match="was there and is gone"):
            await it.app.reload()
        assert await served_by(it) == "spec"
        it.keys |= {"policy.calibration": ""}
        assert await it.app.reload() == ("policy.calibration",)
        assert await served_by(it) == "base"
        assert it.metric("calibration_valid") == 0


@pytest.mark.parametrize("content", ["{", "{}", '{"version": 99}'])
async def test_a_bad_calibration_changes_nothing(tmp_path: Path, content: str) -> None:
    """A half-written or a foreign file is refused by its key, and what was gone by stays."""
    file = tmp_path / "calibration.json"
    async with rig(policy__crossover=0.0, policy__calibration=str(file)) as it:
        file.write_text(dump(of_this_pair(it)), encoding="utf-8")
        await it.app.reload()
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError) as raised:
            await it.app.reload()
        ((key, _),) = raised.value.findings
        assert key == "policy.calibration"
        assert await served_by(it) == "spec"


async def test_a_calibration_of_other_servers_sends_all_to_base(tmp_path: Path) -> None:
    """Loudly: in the log, in the reason, in the metrics and in the state."""
    file = tmp_path / "calibration.json"
    file.write_text(dump(FOUNDING), encoding="utf-8")
    async with rig(policy__crossover=0.0, policy__calibration=str(file)) as it:
        client = await it.client()
        client.send(ASKING)
        answer = await client.response()
        assert answer.header("x-specswitch-upstream") == "base"
        assert answer.header("x-specswitch-reason") == "uncalibrated"
        assert it.metric("calibration_valid") == 0


async def test_a_bad_calibration_keeps_it_from_starting(tmp_path: Path) -> None:
    """Whoever starts it is there to see the error."""
    file = tmp_path / "calibration.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not JSON"):
        async with rig(policy__crossover=0.0, policy__calibration=str(file)):
            pass
