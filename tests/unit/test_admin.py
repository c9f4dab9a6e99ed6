"""The admin listener: what it says, what it changes, and that it can be opened and closed."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import httpx2
import pytest
from fastapi import FastAPI

from proxy.calibration import Calibration
from proxy.control.admin import AdminServer, Past, _listen, build_admin
from proxy.control.decisions import Decisions
from proxy.control.engine import Findings, Load, Reading
from proxy.control.guard import MAX_BODY_BYTES
from proxy.control.history import History
from proxy.control.metrics import Metrics
from proxy.control.state import Facts, Known, Pair
from proxy.core.dispatch import Dispatcher
from proxy.core.identity import Identity
from proxy.core.words import AdminState, Control, UpstreamName
from proxy.errors import ConfigError
from tests.harness.calibrations import FOUNDING
from tests.harness.pair import SETTINGS as PAIR_SETTINGS

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
SETTINGS = replace(
    PAIR_SETTINGS,
    thresholds=replace(PAIR_SETTINGS.thresholds, crossover=5.0),
    spec_cap=None,
)
STARTED = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 29, 13, 0, tzinfo=UTC)


class Scene:
    """An admin application in front of a pair that the test moves."""

    def __init__(self, *, crossover: float | None = 5.0, token: str | None = None) -> None:
        self.now = 100.0
        self.calibration: Calibration | None = None
        self.metrics = Metrics("1.2.3")
        thresholds = replace(SETTINGS.thresholds, crossover=crossover)
        settings = replace(SETTINGS, thresholds=thresholds)
        self.dispatcher = Dispatcher(settings, self.metrics, now=self.now)
        self.findings = {SPEC: Findings(), BASE: Findings()}
        urls = {SPEC: "http://127.0.0.1:30001", BASE: "http://127.0.0.1:30000"}
        facts = Facts(version="1.2.3", started=STARTED)
        pair = Pair(
            self.dispatcher,
            facts,
            lambda: {
                name: Known(url=url, findings=self.findings[name]) for name, url in urls.items()
            },
            calibration=lambda: self.calibration,
            clock=lambda: self.now,
            wall=lambda: LATER,
        )
        self.changed: tuple[str, ...] = ()
        self.rejected: ConfigError | None = None
        self.token = token
        self.app = build_admin(
            pair,
            self.metrics,
            reload=self.reload,
            token=lambda: self.token,
            known_hosts={"admin.example"},
            past=Past(
                Decisions(clock=lambda: self.now, wall=lambda: int(LATER.timestamp() * 1e9)),
                History(self.metrics, clock=lambda: self.now, wall=lambda: 0),
            ),
        )
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://localhost:8001")

    async def reload(self) -> tuple[str, ...]:
        """What a reload finds."""
        if self.rejected is not None:
            raise self.rejected
        return self.changed

    def probe(self, *names: UpstreamName) -> None:
        """Good probes, by which these become healthy."""
        for name in names:
            identity = Identity(
                known=True,
                speculative_algorithm="EAGLE3" if name is SPEC else None,
                max_running_requests=48,
                version="0.5.23",
            )
            self.dispatcher.probe_succeeded(name, identity, self.now)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A pair of which nothing is known yet."""
    made = Scene()
    async with made.client:
        yield made


# Reads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_livez_says_that_the_loop_runs(scene: Scene, method: str) -> None:
    """Whatever the pair does."""
    answer = await scene.client.request(method, "/livez")

    assert answer.status_code == 200
    assert answer.text in {'{"status":"ok"}', ""}


async def test_readyz_needs_a_usable_upstream(scene: Scene) -> None:
    """One is enough, none is not."""
    before = await scene.client.get("/readyz")
    scene.probe(BASE)
    after = await scene.client.get("/readyz")

    assert (before.status_code, before.json()) == (503, {"status": "no usable upstream"})
    assert (after.status_code, after.json()) == (200, {"status": "ok"})
    assert (await scene.client.head("/readyz")).status_code == 200


async def test_readyz_is_not_ready_while_draining(scene: Scene) -> None:
    """A load balancer stops sending before the door shuts."""
    scene.probe(SPEC, BASE)
    scene.dispatcher.drain()

    answer = await scene.client.get("/readyz")

    assert (answer.status_code, answer.json()) == (503, {"status": "draining"})


async def test_metrics_are_prometheuss_text(scene: Scene) -> None:
    """With the content type that goes with it."""
    answer = await scene.client.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "specswitch_requests_started_total 0.0" in answer.text


async def test_state_of_a_pair_of_which_nothing_is_known(scene: Scene) -> None:
    """Every key is there; what is unknown is null."""
    unknown: dict[str, object] = {
        "admin_state": "ready",
        "health": "ejected",
        "cause": None,
        "faults": [],
        "probe_fault": None,
        "cap": None,
        "running": None,
        "waiting": None,
        "acceptance_length": None,
        "signal_age": None,
        "version": None,
    }

    assert (await scene.client.get("/admin/state")).json() == {
        "mode": "base",
        "mode_wanted": "base",
        "mode_reason": "health",
        "topology": "shared",
        "control": "auto",
        "control_set_by": "configuration",
        "control_set_at": "2026-11-29T12:00:00Z",
        "crossover": {"in_flight": 5.0, "tokens_per_second": None},
        "gate": 1.25,
        "in_flight": {"spec": 0, "base": 0},
        "average_in_flight": 0.0,
        "queue_depth": 0,
        "offered": {"fast": None, "slow": None},
        "upstreams": {
            "spec": {"url": "http://127.0.0.1:30001", **unknown},
            "base": {"url": "http://127.0.0.1:30000", **unknown},
        },
        "calibration": None,
        "draining": False,
        "version": "1.2.3",
        "started": "2026-11-29T12:00:00Z",
    }


async def test_state_of_a_calibrated_pair(scene: Scene) -> None:
    """What is decided by, whether it counts, and how far the servers have drifted from it."""
    scene.calibration = FOUNDING
    thresholds = replace(SETTINGS.thresholds, crossover=3.1, crossover_rate=232.0)
    settings = replace(
        SETTINGS,
        thresholds=thresholds,
        expected_tokens=100.0,
        curves={SPEC: FOUNDING.servers.spec.decode.curve},
        made_for={SPEC: {"model": "another"}},
    )
    scene.dispatcher.apply(settings, renewed=set(), control=Control.AUTO, now=scene.now)

    state = (await scene.client.get("/admin/state")).json()
    assert state["crossover"] == {"in_flight": 3.1, "tokens_per_second": 232.0}
    assert state["offered"] == {"fast": 0.0, "slow": 0.0}
    assert state["calibration"] == {
        "created": "2026-11-29T12:00:00Z",
        "verdict": "crossover",
        "sentence": "crossover in [2.9, 3.4]",
        "valid": True,
        "faults": [],
        "drift": {"spec": None, "base": None},
    }
    scene.probe(SPEC, BASE)
    state = (await scene.client.get("/admin/state")).json()
    assert state["mode_reason"] == "uncalibrated"
    assert state["calibration"]["valid"] is False
    assert state["calibration"]["faults"] == ["spec: model is unknown, calibrated with another"]


async def test_state_of_an_upstream(scene: Scene) -> None:
    """What it said of itself, and how old that is."""
    scene.probe(SPEC)
    load = Load(running=3, waiting=1, age_seconds=0.5)
    scene.findings[SPEC].reading = Reading(load, at=98.0, stale_after=6.0)

    state = (await scene.client.get("/admin/state")).json()

    assert state["mode"] == "spec"
    spec = state["upstreams"]["spec"]
    assert (spec["health"], spec["cap"], spec["version"]) == ("healthy", 48, "0.5.23")
    assert (spec["running"], spec["waiting"], spec["signal_age"]) == (3, 1, 2.5)


async def test_a_stale_load_is_unknown(scene: Scene) -> None:
    """Its age stays, so that one sees why."""
    scene.findings[SPEC].reading = Reading(Load(running=3), at=0.0, stale_after=6.0)

    spec = (await scene.client.get("/admin/state")).json()["upstreams"]["spec"]

    assert (spec["running"], spec["signal_age"]) == (None, 100.0)


async def test_state_says_what_is_wrong(scene: Scene) -> None:
    """Swapped servers and failed probes, as sentences."""
    plain = Identity(known=True)
    scene.dispatcher.probe_succeeded(SPEC, plain, 0.0)
    scene.findings[BASE].fault = "http://127.0.0.1:30000/ready answers 503"

    upstreams = (await scene.client.get("/admin/state")).json()["upstreams"]

    assert upstreams["spec"]["cause"] == "misconfigured"
    assert "swapped" in upstreams["spec"]["faults"][0]
    assert upstreams["base"]["probe_fault"] == "http://127.0.0.1:30000/ready answers 503"


@pytest.mark.parametrize(
    ("crossover", "shown", "gate"), [(None, None, None), (inf, "Infinity", "Infinity")]
)
async def test_an_unknown_crossover_is_not_an_infinite_one(
    crossover: float | None, shown: object, gate: object
) -> None:
    """One stays on base, the other on spec; JSON has a word for neither."""
    scene = Scene(crossover=crossover)
    async with scene.client:
        answer = await scene.client.get("/admin/state")

    state = json.loads(answer.text)
    assert (state["crossover"]["in_flight"], state["gate"]) == (shown, gate)


async def test_the_api_is_described(scene: Scene) -> None:
    """OpenAPI names each route, and the schemas of what it answers."""
    described = (await scene.client.get("/openapi.json")).json()

    assert set(described["paths"]) == {
        "/livez",
        "/readyz",
        "/metrics",
        "/admin/state",
        "/admin/decisions",
        "/admin/history",
        "/admin/control",
        "/admin/upstreams/{name}",
        "/admin/reload",
    }
    assert "UpstreamState" in described["components"]["schemas"]


async def test_every_refusal_of_a_change_is_described(scene: Scene) -> None:
    """Also of what is no text (400), and of too much of it (413)."""
    described = (await scene.client.get("/openapi.json")).json()["paths"]
    headers = {"content-type": "application/json"}
    answers = [
        await scene.client.put("/admin/control", content=b"\xff", headers=headers),
        await scene.client.put("/admin/control", content=b" " * 70_000, headers=headers),
    ]

    told = set(described["/admin/control"]["put"]["responses"])
    assert {str(answer.status_code) for answer in answers} == {"400", "413"} <= told
    assert {"400", "413"} <= set(described["/admin/upstreams/{name}"]["put"]["responses"])


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_no_page_brings_foreign_scripts(scene: Scene, path: str) -> None:
    """FastAPI's own pages load theirs from a CDN, into an origin that may change the control."""
    assert (await scene.client.get(path)).status_code == 404


# Changes ---------------------------------------------------------------------------------------


async def test_the_control_is_set(scene: Scene) -> None:
    """At once, and the state says by whom and when."""
    scene.probe(SPEC, BASE)

    answer = await scene.client.put("/admin/control", json={"control": "observe"})

    assert answer.status_code == 200
    assert scene.dispatcher.control is Control.OBSERVE
    state = answer.json()
    assert (state["control"], state["mode"], state["mode_wanted"]) == ("observe", "base", "spec")
    assert state["control_set_by"] == "admin (127.0.0.1)"
    assert state["control_set_at"] == "2026-11-29T13:00:00Z"


async def test_without_a_client_address_it_was_the_admin(scene: Scene) -> None:
    """A UNIX socket has none."""
    transport = httpx2.ASGITransport(app=scene.app, client=None)  # type: ignore[arg-type]  # a UNIX socket
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.put("/admin/control", json={"control": "base"})

    assert answer.json()["control_set_by"] == "admin"


async def test_an_upstream_is_taken_out(scene: Scene) -> None:
    """And put back; the other one serves meanwhile."""
    scene.probe(SPEC, BASE)

    answer = await scene.client.put("/admin/upstreams/spec", json={"admin_state": "drain"})

    assert answer.json()["upstreams"]["spec"]["admin_state"] == "drain"
    assert answer.json()["mode"] == "base"
    assert scene.dispatcher.spec.admin_state is AdminState.DRAIN


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/admin/control", '{"control": "off"}', "control", "'auto', 'spec', 'base' or 'observe'"),
        ("/admin/control", "{}", "control", "required"),
        ("/admin/control", '{"control": "auto", "x": 1}', "x", "not permitted"),
        ("/admin/control", "[]", None, "object"),
        ("/admin/control", "", None, "required"),
        ("/admin/control", '{"control"', None, "JSON"),
        ("/admin/upstreams/spec", '{"admin_state": "up"}', "admin_state", "'ready'"),
        ("/admin/upstreams/both", '{"admin_state": "drain"}', "name", "'spec' or 'base'"),
    ],
)
async def test_a_change_that_makes_no_sense_changes_nothing(
    scene: Scene, path: str, body: str, param: str | None, words: str
) -> None:
    """The answer names the field and what it may be."""
    headers = {"content-type": "application/json"}

    answer = await scene.client.put(path, content=body, headers=headers)

    error = answer.json()["error"]
    assert answer.status_code == 422
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert words in error["message"]
    assert scene.dispatcher.control is Control.AUTO
    assert scene.dispatcher.spec.admin_state is AdminState.READY


async def test_a_long_body_is_refused(scene: Scene) -> None:
    """A change is a line of JSON, whether its length is told beforehand or not."""
    body = json.dumps({"control": "auto" + " " * MAX_BODY_BYTES}).encode()
    headers = {"content-type": "application/json"}

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    told = await scene.client.put("/admin/control", content=body, headers=headers)
    untold = await scene.client.put("/admin/control", content=pieces(), headers=headers)

    assert (told.status_code, told.json()["error"]["code"]) == (413, "body_too_large")
    assert untold.status_code == 413


async def test_changes_are_guarded_and_reads_are_not() -> None:
    """With a token set, only changes need it."""
    scene = Scene(token="s3cret")
    async with scene.client as client:
        assert (await client.get("/admin/state")).status_code == 200
        refused = await client.put("/admin/control", json={"control": "base"})
        headers = {"authorization": "Bearer s3cret"}
        taken = await client.put("/admin/control", json={"control": "base"}, headers=headers)
        read = await client.get("/admin/state")

    assert (refused.status_code, taken.status_code) == (401, 200)
    assert "s3cret" not in refused.text + taken.text + read.text


async def test_other_paths_and_methods_answer_in_one_shape(scene: Scene) -> None:
    """Also what the framework answers by itself."""
    missing = await scene.client.get("/nothing")
    wrong = await scene.client.put("/admin/state", json={})

    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET"


async def test_a_fault_of_ours_shows_no_insides(scene: Scene) -> None:
    """The log has the traceback, the client has a sentence."""
    del scene.findings[SPEC]

    answer = await scene.client.get("/admin/state")

    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "specswitch failed to answer this; its log says why",
        "type": "api_error",
        "param": None,
        "code": "internal_error",
    }


async def test_nothing_is_sent_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI would export by itself where the environment of another process says so."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    scene = Scene()
    app = scene.app._app  # type: ignore[attr-defined]  # inside the guard
    assert isinstance(app, FastAPI)

    off = {name: app._telemetry[name] for name in ("tracing", "metrics", "logs", "auto_configure")}

    assert not any(off.values())
    assert not app._native_telemetry.enabled()
    await scene.client.aclose()


# The listener ----------------------------------------------------------------------------------


async def test_it_listens_and_closes(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """On a port that is known once it is open, without a word in the log, and signals are ours."""
    before = signal.getsignal(signal.SIGTERM)
    server = AdminServer(scene.app, "127.0.0.1", 0)
    with caplog.at_level(logging.INFO):
        await server.start()
        assert server.port != 0
        assert signal.getsignal(signal.SIGTERM) is before
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            answer = await client.get("/livez", headers={"x-forwarded-for": "6.6.6.6"})
            headers = {"x-forwarded-for": "6.6.6.6"}
            change = {"control": "base"}
            await client.put("/admin/control", json=change, headers=headers)
        await server.close()

    assert answer.status_code == 200
    assert "server" not in answer.headers
    assert scene.dispatcher.control_set_by == "admin (127.0.0.1)"
    assert [r for r in caplog.records if r.name.startswith("uvicorn")] == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_an_address_in_use_is_said_clearly(scene: Scene) -> None:
    """By its key in the configuration; the process is not ended by uvicorn."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use") as caught:
            await AdminServer(scene.app, "127.0.0.1", port).start()

    assert caught.value.findings[0][0] == "listen.admin_port"


async def test_a_name_that_is_none_is_said_clearly(scene: Scene) -> None:
    """Before anything listens."""
    with pytest.raises(ConfigError, match="is no address") as caught:
        await AdminServer(scene.app, "no.such.name.invalid", 8001).start()

    assert caught.value.findings[0][0] == "listen.admin_host"


def test_of_several_addresses_all_or_none_are_opened() -> None:
    """Half a listener would look alive to one client and dead to the next."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.1")]
        with pytest.raises(ConfigError, match=r"127\.0\.0\.2 port"):
            _listen([*wanted, (socket.AF_INET, "127.0.0.2")], port)

        (alone,) = _listen(wanted, port)

    alone.close()


async def test_localhost_is_every_address_of_it(scene: Scene) -> None:
    """With a port chosen for us it is one of them; closing what never started is nothing."""
    server = AdminServer(scene.app, "localhost", 0)
    await server.close()
    await server.start()
    assert server.port
    await server.close()


async def test_a_server_that_ends_at_once_is_an_error(scene: Scene) -> None:
    """Start says so, rather than wait for ever."""
    server = AdminServer(scene.app, "127.0.0.1", 0)

    async def broken(sockets: list[socket.socket] | None = None) -> None:
        for each in sockets or ():
            each.close()
        raise RuntimeError("broken")

    server._server.startup = broken  # type: ignore[method-assign]  # the fault itself
    with pytest.raises(RuntimeError, match="broken"):
        await server.start()


async def test_a_reload_tells_what_changed(scene: Scene) -> None:
    """By key; nothing may have."""
    scene.changed = ("policy.crossover", "auth.api_keys")

    answer = await scene.client.post("/admin/reload", json={})

    assert (answer.status_code, answer.json()) == (200, {"changed": list(scene.changed)})


async def test_a_refused_reload_tells_every_finding(scene: Scene) -> None:
    """Each with its path."""
    scene.rejected = ConfigError([("listen.port", "cannot be changed"), ("policy", "unknown key")])

    answer = await scene.client.post("/admin/reload", json={})

    assert answer.status_code == 422
    assert answer.json() == {
        "errors": [
            {"path": "listen.port", "message": "cannot be changed"},
            {"path": "policy", "message": "unknown key"},
        ]
    }


async def test_the_token_that_counts_is_the_one_of_now(scene: Scene) -> None:
    """A reload may have set one."""
    scene.token = "new"
    refused = await scene.client.post("/admin/reload", json={})
    bearer = {"authorization": "Bearer new"}
    taken = await scene.client.post("/admin/reload", json={}, headers=bearer)

    assert (refused.status_code, taken.status_code) == (401, 200)
