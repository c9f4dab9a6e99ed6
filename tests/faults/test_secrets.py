"""Secrets stay where they were put: seeded everywhere, looked for everywhere else.

BerriAI/litellm#6963, #15799, #39964, #31620, ogx-ai/ogx#3499: keys in tracebacks, debug logs and
URLs. A real process at level debug is driven through every way in which a request can fail; then
its log, its state, its metrics and every answer of its own are searched for each of the seeds.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest
from pydantic import SecretStr

from proxy.cli import main
from proxy.config import Config
from tests.harness.client import CHAT_STREAM, RawClient, Response, get, post
from tests.harness.configs import config
from tests.harness.process import Specswitch, free_port
from tests.harness.running import rig, until
from tests.harness.upstream import (
    STREAM_HEAD,
    Fin,
    Received,
    Reset,
    ScriptedUpstream,
    Send,
    Silence,
    Step,
    chunk,
    event,
    reply,
)

pytestmark = pytest.mark.slow


def seed(where: str) -> str:
    """A secret that says where it was put; all of them begin alike."""
    return f"seeded-secret-{where}"


SEED = "seeded-secret-"
KEY = seed("client-key")
BEARER = {"Authorization": f"Bearer {KEY}"}
ADMIN_KEY = seed("admin-key")
GUESS = {"Authorization": f"Bearer {seed('guess')}", "x-api-key": seed("x"), "api-key": seed("y")}
PLACES = {
    "Cookie": f"session={seed('cookie')}",
    "Proxy-Authorization": f"Bearer {seed('proxy')}",
    "X-Forwarded-Authorization": seed("forwarded"),
    "Referer": f"http://a.example/?api_key={seed('referer')}",
    "User-Agent": seed("agent"),
}
QUERY = f"?api_key={seed('query')}&key={seed('key')}&token={seed('token')}"
BODY = {**CHAT_STREAM, "api_key": seed("body"), "user": seed("user"), "model": seed("model")}
# The deadlines: short for what runs into them, long for a machine that is busy with other things.
SETTINGS: dict[str, object] = {
    "log_level": "debug",
    "auth_api_keys": f"team={KEY},other={seed('other-key')}",
    "auth_admin_token": seed("admin-token"),
    "upstreams_spec_api_key": seed("spec-key"),
    "upstreams_base_api_key": seed("base-key"),
    "upstreams_admin_api_key": ADMIN_KEY,
    "listen_metrics": "true",
    "policy_crossover": 4,
    "health_passive_failures": 1000,
    "health_interval": 0.2,
    "timeouts_wait_for_upstream": 0.2,
    "timeouts_first_byte": 1.0,
    "timeouts_between_chunks": 1.0,
    "timeouts_response": 1.0,
    "limits_header_timeout": 1.0,
    "limits_body_timeout": 1.0,
    "limits_max_body_bytes": "4KiB",
    "limits_max_header_bytes": "4KiB",
}


def engine(*, speculative: bool) -> ScriptedUpstream:
    """An upstream whose /server_info tells its keys, as SGLang's does."""
    made = ScriptedUpstream(speculative=speculative)
    assert made.info is not None
    made.info |= {
        "api_key": seed("engine-key"),
        "admin_api_key": seed("engine-admin-key"),
        "ssl_keyfile_password": seed("engine-password"),
        "launch_command": f"--api-key {seed('engine-command')}",
        "version": "0.5.23",
    }
    return made


class Watched:
    """A process, its engines, and everything of its own that anybody got to see."""

    def __init__(self, it: Specswitch, spec: ScriptedUpstream, base: ScriptedUpstream) -> None:
        self.it = it
        self.spec = spec
        self.base = base
        self.seen: dict[str, bytes] = {}

    async def ask(self, raw: bytes, *, admin: bool = False) -> Response:
        """The answer, or as much of it as comes, on a connection of its own."""
        port = self.it.admin_port if admin else self.it.port
        async with await RawClient.connect(port) as client:
            client.send(raw)
            return await client.response()

    async def own(self, what: str, raw: bytes, status: int, *, admin: bool = False) -> None:
        """An answer of our own: it has the status, and is kept for the search."""
        got = await self.ask(raw, admin=admin)
        assert got.status == status, (what, got)
        self.seen[f"answer: {what}"] = str(got).encode()

    async def reads(self) -> None:
        """What the admin listener tells to anybody."""
        for path in ("/admin/state", "/metrics", "/openapi.json", "/livez", "/readyz"):
            self.seen[f"GET {path}"] = str(await self.ask(get(path), admin=True)).encode()

    def found(self) -> dict[str, str]:
        """Where a seed was seen, and what stood around it."""
        self.seen["the log"] = self.it.log.read_bytes()
        at = {what: text.find(SEED.encode()) for what, text in self.seen.items()}
        return {
            what: self.seen[what][max(0, place - 80) : place + 80].decode("latin-1")
            for what, place in at.items()
            if place >= 0
        }


@asynccontextmanager
async def watched(tmp_path: Path, **settings: object) -> AsyncIterator[Watched]:
    """A process between two scripted engines; at the end nobody has seen a seed."""
    spec, base = engine(speculative=True), engine(speculative=False)
    async with spec, base:
        log = tmp_path / "specswitch.log"
        urls = {"spec_url": spec.url, "base_url": base.url}
        it = Specswitch(log, **{**urls, **SETTINGS, **settings})  # type: ignore[arg-type]  # urls are texts
        async with it:
            made = Watched(it, spec, base)
            await until(lambda: spec.probes > 4 and base.probes > 4, "both were probed")
            yield made
            if it._running.poll() is None:
                await made.reads()
    assert made.found() == {}


def asking(path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """A request with a right key and a seed wherever one can be."""
    return post(path + QUERY, BODY, headers={**BEARER, **PLACES, **headers})


# Requests --------------------------------------------------------------------------------------

BROKEN_ENDS: list[tuple[Step, ...]] = [
    (Reset(),),
    (Fin(),),
    (Silence(),),
    (Send(seed("garbage").encode() + b"\r\n\r\n"),),
    (Send(b"HTTP/1.1 200 OK\r\n" + seed("no-colon").encode() + b"\r\n\r\n"),),
    (Send(b"HTTP/1.1 200 OK\r\nContent-Length: " + seed("length").encode() + b"\r\n\r\n"),),
    (Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + seed("coding").encode() + b"\r\n\r\n"),),
    (Send(b"HTTP/1.1 101 " + seed("phrase").encode() + b"\r\n\r\n"),),
    (Send(b"HTTP/1.1 200 OK\r\n" + seed("half").encode()), Fin()),
]


@pytest.mark.parametrize("form", ["json", "text"])
async def test_no_failed_request_tells_a_secret(form: str, tmp_path: Path) -> None:
    """Every refusal and every fault of an engine, before and after the head."""
    async with watched(tmp_path, log_format=form) as it:
        chat = "/v1/chat/completions"
        for path in (chat, "/v1/messages"):
            await it.own("401", post(path + QUERY, BODY, headers={**GUESS, **PLACES}), 401)
            await it.own("401 of none", post(path + QUERY, BODY, headers=PLACES), 401)
        await it.own("404", asking("/v1/files"), 404)
        await it.own("405", get(chat + QUERY, headers={**BEARER, **PLACES}), 405)
        await it.own("400", b"nonsense " + asking(), 400)
        await it.own("400 header", get("/livez", headers={"a b": seed("name")}), 400)
        await it.own("400 target", get(f"http://u:{seed('user')}@h/{QUERY}"), 400)
        await it.own("408", asking()[:200], 408)
        await it.own("408 body", asking()[:-5], 408)
        await it.own("413", post(chat, b"x" * 5000, headers={**BEARER, **PLACES}), 413)
        await it.own("431", asking(Cookie=seed("cookie") * 400), 431)
        for ends in BROKEN_ENDS:
            it.spec.script(*ends)
            await it.own("502 or 504", asking(), 504 if ends == (Silence(),) else 502)
        await until(lambda: it.spec.probes > 8, "it is probed on")


async def test_no_administration_tells_a_secret(tmp_path: Path) -> None:
    """Done by both, by one, by none, refused, and asked for by others; nor a page of the pair."""
    admin = {"authorization": f"Bearer {ADMIN_KEY}", **PLACES}
    async with watched(tmp_path) as it:
        flush = post("/flush_cache" + QUERY, BODY, headers=admin)
        await it.own("done", flush, 200)
        it.spec.script(Reset())
        await it.own("by one", flush, 502)
        for ends in BROKEN_ENDS:
            it.spec.script(*ends)
            it.base.script(*ends)
            await it.own("by none", flush, 502)
        await it.own("weights", post("/update_weights_from_disk" + QUERY, BODY, headers=admin), 501)
        await it.own("not theirs", asking("/flush_cache"), 404)
        for path in ("/server_info", "/get_server_info", "/v1/loads"):
            await it.own(path, get(path + QUERY, headers={**BEARER, **PLACES}), 200)
        await it.own("/metrics", get("/metrics" + QUERY, headers={**BEARER, **PLACES}), 404)
        await it.spec.stop()
        await it.own("one", get("/server_info" + QUERY, headers={**BEARER, **PLACES}), 200)
        await it.base.stop()
        await it.own("none", get("/server_info" + QUERY, headers={**BEARER, **PLACES}), 503)


async def test_no_broken_stream_tells_a_secret(tmp_path: Path) -> None:
    """Mid-stream faults, refusals of both servers, and clients that leave."""
    token = chunk(event({"choices": [{"delta": {"content": seed("token")}}]}))
    full = reply(
        json.dumps({"error": {"message": seed("refusal"), "code": 503}}).encode(),
        status="503 Service Unavailable",
        headers={"x-debug": seed("engine-header")},
    )
    async with watched(tmp_path) as it:
        last = Send(seed("no-chunk").encode())  # in one read with the first event: a 502 of ours
        for end in (Reset(), Fin(), Silence(), last):
            it.spec.script(Send(STREAM_HEAD + token), end)
            assert not (await it.ask(asking())).complete or end is last
        for upstream in (it.spec, it.base):
            upstream.script(Send(full))
        assert (await it.ask(asking())).status == 503
        it.spec.script(Send(reply(seed("500").encode(), status=f"500 {seed('phrase')}")))
        assert (await it.ask(asking())).status == 500
        it.spec.script(Send(STREAM_HEAD + token), Silence())
        client = await RawClient.connect(it.it.port)
        client.send(asking())
        await client.head()
        client.reset()


async def test_no_lost_engine_tells_a_secret(tmp_path: Path) -> None:
    """Both gone, one misconfigured by what it says of itself, and an end while something runs."""
    async with watched(tmp_path) as it:
        await it.spec.stop()
        await it.base.stop()
        got = await it.ask(asking())
        assert got.status in {502, 503}
        it.seen["answer: nobody there"] = str(got).encode()
        said = it.it.log.read_text
        await until(lambda: said().count('"health":"ejected"') == 2, "both are ejected")
        await it.own("no upstream", asking(), 503)
        for upstream in (it.spec, it.base):
            assert upstream.info is not None
            upstream.info["speculative_algorithm"] = None
            upstream.info["dtype"] = "float8"
            await upstream.start()
        await until(lambda: "misconfigured" in it.it.log.read_text(), "spec is found out")
        await it.reads()


async def test_a_drain_that_cuts_tells_no_secret(tmp_path: Path) -> None:
    """A second signal while a request runs; its client gets what it gets, the log has a count."""
    async with watched(tmp_path, timeouts_response=30, timeouts_first_byte=30) as it:
        it.it.exit_code = 1
        it.spec.script(Silence())
        client = await RawClient.connect(it.it.port)
        client.send(asking())
        await it.spec.received(1)
        it.it.send(signal.SIGTERM)
        await until(lambda: "draining" in it.it.log.read_text(), "it drains")
        await it.own("draining", asking(), 503)
        it.it.send(signal.SIGTERM)
        assert await asyncio.to_thread(it.it.ended) == 1
        client.close()


async def test_no_admin_request_tells_a_secret(tmp_path: Path) -> None:
    """Refused changes: what was tried as a token, a value or a name is in no log and no state."""
    json_type = {"Content-Type": "application/json"}
    wrong = {**json_type, "Authorization": f"Bearer {seed('token-guess')}", **PLACES}
    right = {**json_type, "Authorization": f"Bearer {seed('admin-token')}", **PLACES}
    async with watched(tmp_path) as it:
        for name, headers, body, status in (
            ("wrong token", wrong, b"{}", 401),
            ("other origin", {**right, "Origin": f"http://{seed('origin')}"}, b"{}", 403),
            ("value", right, f'{{"control": "{seed("value")}"}}'.encode(), 422),
            ("broken", right, f'{{"control": "{seed("value")}'.encode(), 422),
            ("form", {**right, "Content-Type": seed("type")}, seed("form").encode(), 415),
            ("big", right, seed("big").encode() * 10_000, 413),
        ):
            raw = post("/admin/control" + QUERY, body, headers=headers)
            raw = raw.replace(b"POST", b"PUT", 1).replace(b"Host: test", b"Host: localhost", 1)
            raw = raw.replace(b"\r\nContent-Type: application/json", b"", 1)
            await it.own(name, raw, status, admin=True)
        await it.own("404", get(f"/nowhere{QUERY}", headers=right), 404, admin=True)
        await it.own("400", f"GET /[{seed('target')} nonsense\r\n\r\n".encode(), 400, admin=True)
        await it.own(
            "target", f"GET http://a:{seed('port')} HTTP/1.1\r\n\r\n".encode(), 400, admin=True
        )


async def test_nobody_sees_a_secret_in_the_list_of_processes(tmp_path: Path) -> None:
    """Secrets come by file or environment; no command line holds one, and no child has any."""
    async with watched(tmp_path) as it:
        own = Path(f"/proc/{it.it.pid}")
        for name in ("cmdline", "comm"):
            it.seen[name] = (own / name).read_bytes()
        assert not (own / "task" / str(it.it.pid) / "children").read_bytes()
    assert isinstance(main, click.Group)
    options = {str(each.name) for command in main.commands.values() for each in command.params}
    counts = {"draft_tokens", "kv_bytes_per_token", "long_tokens", "output_tokens"}
    assert not [name for name in options - counts if "key" in name or "token" in name]


# Faults of our own -----------------------------------------------------------------------------

FAULTY = """
import {module}

def fails(*args, **named):
    local = (args, named)
    raise RuntimeError("a fault that nobody foresaw")

{module}.{target}  # which it still has, or nothing would fail
{module}.{target} = fails

import sys
from proxy.cli import main

sys.argv = ["specswitch", "serve"]
main()
"""
"""A specswitch in which one function raises with everything it was given in a local variable."""
SOURCE = pytest.mark.interpreted("compiled modules do not look up each other's functions by name")


async def _to_the_end(client: RawClient) -> bytes:
    try:
        return await client.reader.read(-1)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    ("module", "target"),
    [
        pytest.param("proxy.data.admission", "presented", marks=SOURCE),
        pytest.param("proxy.core.keys", "Keyring.name_of", marks=SOURCE),
        pytest.param("proxy.data.front", "peek", marks=SOURCE),
        ("proxy.data.relay", "TABLE[proxy.data.relay.ev.Send]"),
        pytest.param("proxy.data.engine_request", "engine_head", marks=SOURCE),
        pytest.param("proxy.data.upstream", "EngineConnection.send", marks=SOURCE),
        pytest.param("proxy.data.client_answer", "client_head", marks=SOURCE),
        pytest.param("proxy.control.logged", "_line_of", marks=SOURCE),
    ],
)
async def test_no_traceback_tells_a_secret(module: str, target: str, tmp_path: Path) -> None:
    """A fault of ours while it handles keys: the log has a traceback, and no value of a variable.

    The client's connection ends; nothing of ours is left over for it.
    """
    spec, base = engine(speculative=True), engine(speculative=False)
    async with spec, base:
        log = tmp_path / "specswitch.log"
        it = Specswitch(log, spec_url=spec.url, base_url=base.url, **SETTINGS)
        it.program = (sys.executable, "-X", "dev", "-W", "ignore", "-c", FAULTY.format(**locals()))
        async with it:
            made = Watched(it, spec, base)
            for raw in (asking(Connection="close"), asking("/generate", Connection="close")):
                async with await RawClient.connect(it.port) as client:
                    client.send(raw)
                    async with asyncio.timeout(10):
                        made.seen["answer"] = await _to_the_end(client)
            await until(lambda: "Traceback" in log.read_text(), "the fault is told")
            await made.reads()
    assert "a fault that nobody foresaw" in log.read_text()
    assert made.found() == {}


async def test_no_traceback_of_the_admin_listener_tells_a_secret(tmp_path: Path) -> None:
    """The same behind the guard, with a token in hand: 500 with a sentence, a traceback without."""
    spec, base = engine(speculative=True), engine(speculative=False)
    async with spec, base:
        log = tmp_path / "specswitch.log"
        it = Specswitch(log, spec_url=spec.url, base_url=base.url, **SETTINGS)
        code = FAULTY.format(module="proxy.control.state", target="Pair.state")
        it.program = (sys.executable, "-c", code)
        async with it:
            made = Watched(it, spec, base)
            headers = {"Authorization": f"Bearer {seed('admin-token')}", **PLACES}
            raw = post("/admin/control" + QUERY, {"control": "auto"}, headers=headers)
            raw = raw.replace(b"POST", b"PUT", 1).replace(b"Host: test", b"Host: localhost", 1)
            await made.own("500", raw, 500, admin=True)
            await until(lambda: "Traceback" in log.read_text(), "the fault is told")
    assert made.found() == {}


# Configuration ---------------------------------------------------------------------------------

BAD: dict[str, str] = {
    "in place of a section": 'auth = "@"',
    "in place of a server": '[upstreams]\nspec = "@"',
    "a number of a key": "[auth]\nadmin_token = 1234567890",
    "a key with a space": '[upstreams.spec]\napi_key = "@ @"',
    "not text": '[upstreams.base]\napi_key = ["@"]',
    "in a table": '[auth.admin_token]\nvalue = "@"',
    "not ASCII": '[auth]\nadmin_token = "@ü"',
    "in place of the table": '[auth]\napi_keys = "@"',
    "as a list": '[auth]\napi_keys = ["@"]',
    "in a list": '[auth.api_keys]\nteam = ["@"]',
    "one key twice": '[auth.api_keys]\none = "@"\ntwo = "@"',
    "a key with a line end": '[auth.api_keys]\none = "@\\n"',
    "user information": '[upstreams.spec]\nurl = "http://user:@@host:1"',
    "in a query": '[upstreams.spec]\nurl = "http://host:1?api_key=@"',
    "in a path": '[upstreams.base]\nurl = "http://host:1/@"',
    "in a fragment": '[upstreams.base]\nurl = "http://host:1#@"',
    "no URL at all": '[upstreams.base]\nurl = "@"',
    "a file that is none": '[upstreams.base]\nca_file = "@"',
    "no quotes": "[auth]\nadmin_token = @",
    "no end": '[auth]\nadmin_token = "@',
    "no equals sign": '[auth]\nadmin_token "@"',
    "set twice": '[auth]\nadmin_token = "@"\nadmin_token = "@"',
    "a bad escape": '[auth]\nadmin_token = "@\\q"',
    "not UTF-8": '[auth]\nadmin_token = "@\xff"',
    "a control character": '[auth]\nadmin_token = "@\x00"',
    "an unknown key": '[auth]\nadmin_tokn = "@"',
    "an unknown section": '[auht]\nadmin_token = "@"',
    "at the top": 'admin_token = "@"',
}


def check(folder: Path, text: str, *flags: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`specswitch serve` with this file, which has to refuse it."""
    file = folder / "specswitch.toml"
    file.write_bytes(text.encode("utf-8" if "\xff" not in text else "latin-1"))
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "proxy", "serve", *flags],
        env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **env},
        cwd=folder,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2, done
    return done


def test_no_finding_tells_a_secret(tmp_path: Path) -> None:
    """Each way to get a key wrong in the file: refused by its path, the value unsaid."""
    for what, text in BAD.items():
        found = _findings(text.replace("@", seed("file")), tmp_path)
        assert found, what
        assert SEED not in str(found), (what, found)
        assert "1234567890" not in str(found), (what, found)


def _findings(text: str, folder: Path) -> tuple[tuple[str, str], ...]:
    """The same, in this process: a hundred starts would take a minute."""
    from proxy.config import load  # noqa: PLC0415 - only here
    from proxy.errors import ConfigError  # noqa: PLC0415 - only here

    file = folder / "bad.toml"
    file.write_bytes(text.encode("utf-8" if "\xff" not in text else "latin-1"))
    with pytest.raises(ConfigError) as raised:
        load(file=file, env={}, overrides={})
    assert SEED not in str(raised.value) + repr(raised.value)
    return raised.value.findings


@pytest.mark.parametrize("flags", [(), ("--check",), ("--check", "--json")])
def test_a_refused_start_tells_no_secret(flags: tuple[str, ...], tmp_path: Path) -> None:
    """All of it at once through the command, from the file and from the environment."""
    text = '[auth]\nadmin_token = "@ @"\nadmin_tokn = "@"\napi_keys = "@"\n'
    text += '[upstreams.spec]\nurl = "http://u:@@h:1"\napi_key = ["@"]\n'
    done = check(
        tmp_path,
        text.replace("@", seed("file")),
        *flags,
        SPECSWITCH_UPSTREAMS_BASE_API_KEY=f"{seed('env')} x",
        SPECSWITCH_UPSTREAMS_BASE_URL=f"https://u:{seed('env')}@h",
        SPECSWITCH_AUTH_API_KEY=seed("env"),
    )
    said = done.stdout + done.stderr
    assert b"upstreams.spec.url" in said
    assert b"SPECSWITCH_UPSTREAMS_BASE_API_KEY" in said
    assert SEED.encode() not in said
    assert b"Traceback" not in said


def _shown(made: Config) -> Iterator[str]:
    """Every way in which a configuration becomes text."""
    ways: list[Callable[[], object]] = [
        lambda: made,
        lambda: repr(made),
        lambda: f"{made}",
        made.model_dump,
        made.model_dump_json,
        lambda: made.auth,
        lambda: made.upstreams.spec,
        lambda: dict(made.auth.api_keys),
        lambda: list(made.auth),
        lambda: vars(made.auth),
    ]
    for way in ways:
        yield str(way())
        yield repr(way())


def test_a_configuration_hides_its_secrets() -> None:
    """However it is shown; only who asks for a value by its name gets it."""
    made = config(
        overrides={
            "auth.api_keys": {"team": seed("a")},
            "auth.admin_token": seed("b"),
            "upstreams.spec.api_key": seed("c"),
            "upstreams.admin_api_key": seed("e"),
            "upstreams.base.api_key": seed("d"),
        }
    )

    assert made.auth.admin_token == SecretStr(seed("b"))
    assert not [text for text in _shown(made) if SEED in text]


async def test_no_object_shows_a_key() -> None:
    """What holds a key does not show it: the loop and its handlers print objects when they fail."""
    keys = {"auth.api_keys": {"team": KEY}, "auth.admin_token": seed("admin-token")}
    own = {f"upstreams.{name}.api_key": seed(name) for name in ("spec", "base")}
    own["upstreams.admin_api_key"] = ADMIN_KEY
    async with rig(**keys, **own) as it:  # type: ignore[arg-type]  # keys of the configuration only
        held = (it.app, it.app.front, it.app.config, it.app.front.keyring, it.app.dispatcher)
        shown = [repr(each) for each in held]
        shown += [repr(each) for each in it.app.front.engines.values()]
        shown += [repr(each) for each in it.app.links.reaches.values()]
    assert not [each for each in shown if SEED in each]


# What the engines say --------------------------------------------------------------------------


class Babbling(ScriptedUpstream):
    """A server that answers probes with what it was sent, in a form that is no HTTP."""

    def _probe_answer(self, request: Received) -> bytes:
        del request
        forms = (
            b"HTTP/1.1 200 OK\r\nauthorization Bearer %s\r\n\r\n",
            b"authorization: Bearer %s\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: \0%s\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n",
        )
        return forms[self.probes % len(forms)] % seed("echo").encode()


async def test_an_engine_that_babbles_tells_nobody(tmp_path: Path) -> None:
    """Our own key, sent back by something that is no SGLang, is not repeated in log or state."""
    spec, base = Babbling(speculative=True), Babbling(speculative=False)
    async with spec, base:
        it = Specswitch(tmp_path / "log", spec_url=spec.url, base_url=base.url, **SETTINGS)
        it.wait = False
        async with it:
            made = Watched(it, spec, base)
            await until(lambda: spec.probes > 8, "it is probed")
            await made.reads()
    assert made.found() == {}


async def test_a_query_of_the_probe_is_not_repeated(tmp_path: Path) -> None:
    """`health.path` may have a query, and with it what belongs to nobody else."""
    down = f"http://127.0.0.1:{free_port()}"
    other = f"http://127.0.0.1:{free_port()}"
    path = f"/ready?api_key={seed('probe')}"
    it = Specswitch(
        tmp_path / "log", spec_url=down, base_url=other, **{**SETTINGS, "health_path": path}
    )
    it.wait = False
    async with it, ScriptedUpstream(speculative=True) as unused:
        made = Watched(it, unused, unused)
        await until(lambda: "probe of" in it.log.read_text(), "a probe has failed")
        await made.reads()
    assert made.found() == {}
