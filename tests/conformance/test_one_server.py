"""The pair as one server: what routers, autoscalers and load generators read of it.

On scripted engines, for every shape and every failure; on the simulated pair, for what a pair that
works says. `tests/engines/test_one_door.py` has the same on real engines.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.control.engine import Reach
from proxy.core.words import UpstreamName
from proxy.sim.server import SimulatedPair
from tests.harness.client import Response, get, post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import (
    Fin,
    Gate,
    Received,
    ScriptedUpstream,
    Send,
    Silence,
    Step,
    reply,
)

PATHS = ("/server_info", "/get_server_info", "/v1/loads", "/metrics")
METRICS = "text/plain; version=0.0.4; charset=utf-8"
PAGES = {
    "/server_info": reply(b'{"model_path": "tiny", "internal_states": []}'),
    "/get_server_info": reply(b'{"model_path": "tiny", "internal_states": []}'),
    "/v1/loads": reply(b'{"version": "0.5.23", "loads": [{"dp_rank": 0, "num_running_reqs": 3}]}'),
    "/metrics": reply(
        b"# TYPE sglang:num_running_reqs gauge\n"
        b'sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 3.0\n',
        content_type=METRICS,
    ),
}
"""What a server has, whole."""
ABSENT = reply(b'{"detail":"Not Found"}', status="404 Not Found")


async def ask(it: Rig, path: str, **headers: str) -> Response:
    """The answer to a GET, over a connection of its own."""
    client = await it.client()
    client.send(get(path, headers=headers))
    return await client.response()


def told(response: Response) -> Any:  # noqa: ANN401 - JSON
    """The body."""
    return json.loads(response.body)


@asynccontextmanager
async def unprobed(**settings: object) -> AsyncIterator[Rig]:
    """A rig whose engines have been probed once, and are not again: what comes then is asked."""
    async with rig(wait=False, health__interval=60.0, **settings) as it:  # type: ignore[arg-type]  # keys of the configuration only
        await until(lambda: min(it.spec.probes, it.base.probes) >= _ROUND, "both were probed")
        yield it


_ROUND = 5
"""What a first probe asks: is it ready, what is it, its models, its load, its metrics."""


def asked_alone(it: Rig, path: str) -> None:
    """From now on `path` is asked for by the pair's clients only, and answered by scripts."""
    for upstream in (it.spec, it.base):
        upstream.pages[path] = None


def said(response: Response) -> dict[str, str]:
    """What is said of each server, in whichever form."""
    if response.header("content-type") == "application/json":
        found: dict[str, str] = told(response)["specswitch"]
        return {name: what for name, what in found.items() if what != "ok"}
    notes = [line for line in response.body.decode().splitlines() if "specswitch: " in line]
    return dict(line.removeprefix("# specswitch: ").split(" ", 1) for line in notes)


# One, none, and what is no page ----------------------------------------------------------------

TRUNCATED = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"
WRONG: dict[str, tuple[Step, str]] = {
    "404": (Send(ABSENT), "answers 404"),
    "500": (Send(reply(b"oh", status="500 Internal Server Error")), "answers 500"),
    "599": (Send(reply(b"oh", status="599 Odd")), "answers 599"),
    "204": (Send(b"HTTP/1.1 204 No Content\r\n\r\n"), "answers 204"),
    "not UTF-8": (Send(reply(b"\xff\xfe")), "does not answer as SGLang does"),
    "half": (Send(TRUNCATED), "could not be asked"),
    "not HTTP": (Send(b"garbage\r\n\r\n"), "could not be asked"),
    "nothing": (Fin(), "could not be asked"),
    "silence": (Silence(), "did not answer in time"),
    "too much": (Send(reply(b"x" * (16 * 2**20 + 1))), "could not be asked"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("who", ["spec", "base"])
async def test_one_server_is_enough(who: str, path: str, what: str) -> None:
    """The other's page, and in words what is wrong with this one; without its address."""
    step, why = WRONG[what]
    async with unprobed(
        listen__metrics=True, health__timeout=5.0 if what != "silence" else 0.2
    ) as it:
        for each in (path, "/server_info", "/get_server_info"):
            asked_alone(it, each)
        broken = it.upstream(who)
        broken.always(step) if isinstance(step, Silence) else broken.always(step, Fin())
        other = it.upstream("base" if who == "spec" else "spec")
        other.always(Send(PAGES[path]))
        response = await ask(it, path)
        assert response.status == 200
        assert said(response) == {who: why}
        assert str(broken.port) not in response.body.decode()
        assert it.total("ejections_total") == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("who", ["spec", "base"])
async def test_a_server_that_is_gone(path: str, who: str) -> None:
    """Nobody listens there."""
    async with rig(listen__metrics=True) as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        await it.upstream(who).stop()
        response = await ask(it, path)
        assert (response.status, said(response)) == (200, {who: "could not be asked"})


async def test_the_rank_of_a_server_that_is_gone() -> None:
    """Is missing, and nothing is wrong with the question."""
    async with rig() as it:
        it.spec.pages |= PAGES
        await it.base.stop()
        response = await ask(it, "/v1/loads?dp_rank=1")
        assert (response.status, json.loads(response.body)["loads"]) == (200, [])


async def test_metrics_that_are_switched_off() -> None:
    """404, and the key that would switch them on."""
    async with rig() as it:
        response = await ask(it, "/metrics")
        assert (response.status, response.code) == (404, "not_found")
        message = json.loads(response.body)["error"]["message"]
        assert message == "/metrics is not served here; `listen.metrics` is off"


NOT_THIS_PAGE = {
    "/v1/loads": [b'{"detail":"not here"}', b'{"loads":null}', b'{"loads":{}}'],
    "/metrics": [b"<html>\n login\n</html>", b'{"detail":"not here"}', b"a sglang:x 1\n", b"{}"],
}


@pytest.mark.parametrize(
    ("path", "body"), [(path, body) for path, own in NOT_THIS_PAGE.items() for body in own]
)
async def test_a_page_of_another_kind(path: str, body: bytes) -> None:
    """Somebody else's 200 is no page, and the server counts as missing."""
    async with rig(listen__metrics=True) as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        it.spec.pages[path] = reply(body)
        response = await ask(it, path)
        assert (response.status, said(response)) == (
            200,
            {"spec": "does not answer as SGLang does"},
        )
        it.base.pages[path] = reply(body)
        response = await ask(it, path)
        assert (response.status, response.code) == (503, "no_upstream")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/metrics", b""),
        ("/metrics", b"\n"),
        ("/metrics", b"# TYPE python_info gauge\npython_info 1.0\n"),
        ("/metrics", b"\r\nsglang:num_running_reqs 1\n"),
        ("/v1/loads", b'{"loads":[]}'),
    ],
)
async def test_a_page_with_little_on_it(path: str, body: bytes) -> None:
    """A server that has served nobody yet has no figures, and is well."""
    async with rig(listen__metrics=True) as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        it.spec.pages[path] = reply(body)
        response = await ask(it, path)
        assert (response.status, said(response)) == (200, {})


NO_PAGES = {
    **{body.decode() or "nothing": body for body in (b"[]", b"null", b"", b"{", b'"a"')},
    "deeper than can be read": b"[" * 100_000,
    "deeper than can be looked through": b'{"a":' * 500 + b"1" + b"}" * 500,
    "infinite": b'{"loads":[{"token_usage":1e999}]}',
    "beyond a float": b'{"loads":[{"token_usage":1%b},{"token_usage":1}]}' % (b"0" * 400),
}


@pytest.mark.parametrize("body", NO_PAGES.values(), ids=NO_PAGES)
@pytest.mark.parametrize("path", PATHS[:3])
async def test_what_is_no_object(path: str, body: bytes) -> None:
    """Is no page, nor is what nothing could be made of."""
    async with rig() as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        it.base.pages |= dict.fromkeys(PATHS, reply(body))
        response = await ask(it, path)
        assert (response.status, said(response)) == (
            200,
            {"base": "does not answer as SGLang does"},
        )
        it.spec.pages |= dict.fromkeys(PATHS, reply(body))
        response = await ask(it, path)
        assert (response.status, response.code) == (503, "no_upstream")


@pytest.mark.parametrize("path", PATHS)
async def test_no_server_at_all(path: str) -> None:
    """503, saying what is wrong with each, and when to come back."""
    async with rig(listen__metrics=True) as it:
        await it.spec.stop()
        await it.base.stop()
        response = await ask(it, path)
        assert (response.status, response.code) == (503, "no_upstream")
        assert response.header("retry-after") == "5"
        message = told(response)["error"]["message"]
        assert message == (
            "no upstream could tell: spec could not be asked, base could not be asked"
        )
        assert it.total("requests_total", outcome="rejected", endpoint=path) == 1


@pytest.mark.parametrize("status", ["404 Not Found", "400 Bad Request", "401 Unauthorized"])
@pytest.mark.parametrize("path", PATHS)
async def test_what_both_refuse_passes(path: str, status: str) -> None:
    """In the words of base; its connection goes on."""
    async with rig(listen__metrics=True) as it:
        for name, upstream in (("spec", it.spec), ("base", it.base)):
            body = json.dumps({"detail": name}).encode()
            upstream.pages |= dict.fromkeys(PATHS, reply(body, status=status))
        client = await it.client()
        for _ in range(2):
            client.send(get(path))
            response = await client.response()
            assert response.status == int(status[:3])
            assert told(response) == {"detail": "base"}
            assert response.header("content-type") == "application/json"
        await it.base.stop()
        client.send(get(path))
        assert told(await client.response()) == {"detail": "spec"}
        assert it.total("requests_total", outcome="ok", endpoint=path) == 3


async def test_a_type_that_is_no_ascii_passes_too() -> None:
    """What an engine's refusal says of itself is no fault of ours, whatever it is."""
    odd = reply(b"oh", status="400 Bad Request")
    odd = odd.replace(b"application/json", b"text/\xe4\xb8\xad")
    async with unprobed() as it:
        for upstream in (it.spec, it.base):
            upstream.pages["/v1/loads"] = odd
        response = await ask(it, "/v1/loads")
        assert (response.status, response.body) == (400, b"oh")
        assert (response.header("content-type") or "").encode("latin-1") == b"text/\xe4\xb8\xad"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", ["499 Odd", "500 Internal Server Error", "302 Found"])
async def test_what_is_no_refusal_does_not_pass(path: str, status: str) -> None:
    """A status that HTTP does not know, a fault of theirs, a way elsewhere: no upstream."""
    async with rig(listen__metrics=True) as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= dict.fromkeys(PATHS, reply(b"oh", status=status))
        response = await ask(it, path)
        assert (response.status, response.code) == (503, "no_upstream")
        assert f"spec answers {status[:3]}" in told(response)["error"]["message"]


async def test_an_older_server_has_the_older_name() -> None:
    """`/server_info` of the pair is found there, too."""
    async with rig() as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= {"/server_info": ABSENT}
        assert (await ask(it, "/server_info")).status == 200
        assert (await ask(it, "/get_server_info")).status == 200


# Keys, and who else may ------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_key_is_needed_where_there_are_any(path: str) -> None:
    """Metrics, too; and the client's key goes to no engine."""
    async with unprobed(listen__metrics=True, auth__api_keys={"team": "sk-right"}) as it:
        for each in (path, "/server_info"):
            asked_alone(it, each)
        for upstream in (it.spec, it.base):
            upstream.always(Send(PAGES[path]))
        assert (await ask(it, path)).status == 401
        assert (await ask(it, path, authorization="Bearer sk-wrong")).status == 401
        assert (await ask(it, path, authorization="Bearer sk-right")).status == 200
        assert {received.header("authorization") for received in it.spec.requests} == {None}


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_that_the_engines_judge_goes_to_them(path: str) -> None:
    """As on every path, where we have no keys; an upstream's own key goes in its place."""
    async with unprobed(listen__metrics=True, upstreams__spec__api_key="own") as it:
        for each in (path, "/server_info"):
            asked_alone(it, each)
        for upstream in (it.spec, it.base):
            upstream.always(Send(PAGES[path]))
        assert (await ask(it, path, authorization="Bearer theirs")).status == 200
        assert it.spec.requests[0].header("authorization") == "Bearer own"
        assert it.base.requests[0].header("authorization") == "Bearer theirs"


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (b"k\xc3\xa9y", 200),
        (b"\xff", 200),
        (b"a\tb", 200),
        (b"a\x01", 400),
        (b"a\x0bb", 400),
        (b"a\x7f", 400),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_a_key_that_is_no_text_is_theirs_to_judge(path: str, key: bytes, status: int) -> None:
    """As it came, unless HTTP itself has no such value; the fault is never ours."""
    async with unprobed(listen__metrics=True) as it:
        for each in (path, "/server_info"):
            asked_alone(it, each)
        for upstream in (it.spec, it.base):
            upstream.always(Send(PAGES[path]))
        client = await it.client()
        header = b"authorization: Bearer " + key
        client.send(get(path).replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n"))
        assert (await client.response()).status == status
        keys = {received.header("authorization") for received in _both(it)}
        assert keys == ({"Bearer " + key.decode("latin-1")} if status == 200 else set())


async def test_metrics_only_where_they_are_wanted() -> None:
    """By default the path is not there."""
    async with rig() as it:
        assert (await ask(it, "/metrics")).code == "not_found"
        assert it.total("requests_total", endpoint="other") == 1


# One question for many, clients that leave -----------------------------------------------------


async def held(it: Rig, path: str, gate: asyncio.Event) -> None:
    """The engines answer `path` once the gate is open."""
    asked_alone(it, path)
    for upstream in (it.spec, it.base):
        upstream.always(Gate(gate), Send(PAGES[path]))


async def test_what_many_ask_is_asked_once() -> None:
    """At the same time; afterwards anew, since nothing is kept."""
    async with unprobed(listen__metrics=True) as it:
        gate = asyncio.Event()
        await held(it, "/metrics", gate)
        clients = [await it.client() for _ in range(50)]
        for client in clients:
            client.send(get("/metrics"))
        await until(lambda: it.app.front.open_requests == 50, "all are here")
        await it.spec.received(1)
        await it.base.received(1)
        clients.pop().close()
        gate.set()
        answers = [await client.response() for client in clients]
        assert {each.body for each in answers} == {answers[0].body}
        assert len({each.header("x-request-id") for each in answers}) == 49
        assert len(it.spec.requests) == len(it.base.requests) == 1
        assert (await ask(it, "/metrics")).status == 200
        assert len(it.spec.requests) == len(it.base.requests) == 2


async def test_a_body_makes_no_other_question() -> None:
    """A page is asked for without one; what comes with it all the same is read and passed over."""
    async with unprobed() as it:
        gate = asyncio.Event()
        await held(it, "/v1/loads", gate)
        clients = [await it.client() for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(
                b"GET /v1/loads HTTP/1.1\r\nhost: a\r\ncontent-type: text/%d\r\n"
                b"content-length: 1\r\n\r\n%d" % (number, number)
            )
        await until(lambda: it.app.front.open_requests == 3, "all are here")
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == len(it.base.requests) == 1
        assert it.spec.requests[0].body == b""


async def test_different_questions_are_different() -> None:
    """By their query, and by the key that the engines judge."""
    async with unprobed() as it:
        gate = asyncio.Event()
        await held(it, "/v1/loads", gate)
        asks: list[tuple[str, dict[str, str]]] = [
            ("/v1/loads", {}),
            ("/v1/loads", {"x-api-key": "a"}),
            ("/v1/loads", {"x-api-key": "b"}),
            ("/v1/loads?include=core", {}),
            ("/v1/loads?include=core", {}),
        ]
        clients = []
        for path, headers in asks:
            clients.append(await it.client())
            clients[-1].send(get(path, headers=headers))
        await it.base.received(4)
        await it.spec.received(4)
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == 4


@pytest.mark.parametrize(
    ("path", "asks", "times"),
    [
        ("/server_info", ["", "?a=1", "?a=2"], 1),
        ("/metrics", ["", "?a=1", "?name[]=sglang:num_running_reqs"], 1),
        ("/v1/loads", ["", "?format=json", "?format=prometheus&format=json"], 1),
        ("/v1/loads", [f"?dp_rank={rank}" for rank in (2, 3, -1, 99, "0000003")], 1),
        ("/v1/loads", ["?include=core", "?include=%63ore", "?format=a&include=core"], 1),
        ("/v1/loads", ["", "?dp_rank=0", "?dp_rank=1", "?dp_rank=2", "?format=prometheus"], 5),
    ],
)
async def test_what_makes_no_difference_makes_no_other_question(
    path: str, asks: list[str], times: int
) -> None:
    """Or whoever makes up queries would cost the engines an answer for each."""
    async with unprobed(listen__metrics=True) as it:
        gate = asyncio.Event()
        await held(it, path, gate)
        clients = []
        for query in asks:
            clients.append(await it.client())
            clients[-1].send(get(path + query))
        await until(lambda: it.app.front.open_requests == len(asks), "all are here")
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == len(it.base.requests) == times


async def test_both_names_of_a_page_are_one_question() -> None:
    """Its older name is answered with the same."""
    async with unprobed() as it:
        gate = asyncio.Event()
        await held(it, "/server_info", gate)
        clients = []
        for path in ("/server_info", "/get_server_info"):
            clients.append(await it.client())
            clients[-1].send(get(path))
        await until(lambda: it.app.front.open_requests == 2, "both are here")
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == len(it.base.requests) == 1


async def test_many_questions_wait_in_turn() -> None:
    """However many different ones there are, an engine answers a few at one time."""
    async with unprobed() as it:
        gate = asyncio.Event()
        await held(it, "/v1/loads", gate)
        clients = [await it.client() for _ in range(12)]
        for number, client in enumerate(clients):
            client.send(get(f"/v1/loads?include={number}"))
        await it.spec.received(8)
        await it.base.received(8)
        await until(lambda: it.app.front.open_requests == 12, "all are here")
        for _ in range(20):  # while these come and go a ninth would have come, too
            assert (await ask(it, "/livez")).status == 200
        assert len(it.spec.requests) == 8
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert len(it.spec.requests) == 12


async def test_what_nobody_waits_for_is_not_gone_on_with() -> None:
    """Both connections are closed with the last client; who comes then asks anew."""
    async with unprobed(health__timeout=10.0) as it:
        gate = asyncio.Event()
        await held(it, "/v1/loads", gate)
        first, second = await it.client(), await it.client()
        first.send(get("/v1/loads"))
        second.send(get("/v1/loads"))
        await it.spec.received(1)
        await it.base.received(1)
        await until(lambda: it.app.front.open_requests == 2, "both are here")
        first.close()
        await until(lambda: it.total("requests_total", outcome="abandoned") == 1, "one has left")
        assert not it.spec.requests[0].gone.is_set()
        second.close()
        async with asyncio.timeout(2):
            await it.spec.requests[0].gone.wait()
            await it.base.requests[0].gone.wait()
        gate.set()
        assert (await ask(it, "/v1/loads")).status == 200
        assert len(it.spec.requests) == 2


async def test_a_fault_of_ours_is_a_500_of_ours() -> None:
    """It is reported, counted as failed, and the connection goes on."""
    strays: list[dict[str, Any]] = []

    def fails() -> dict[UpstreamName, Reach]:
        raise KeyError("a fault that cannot be foreseen")

    async with rig() as it:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: strays.append(context))
        client = await it.client()
        reaches, it.app.desk._reaches = it.app.desk._reaches, fails
        client.send(get("/server_info"))
        response = await client.response()
        assert (response.status, response.code) == (500, "internal_error")
        assert it.total("requests_total", outcome="failed", endpoint="/server_info") == 1
        fault = strays[0]["exception"]
        assert isinstance(fault, ExceptionGroup)
        assert fault.subgroup(KeyError) is not None
        it.app.desk._reaches = reaches
        client.send(get("/server_info"))
        assert (await client.response()).status == 200


async def test_who_is_put_in_place_of_another_is_asked_from_then_on() -> None:
    """After a reload."""
    async with rig() as it, ScriptedUpstream(speculative=False) as other:
        it.keys["upstreams.base.url"] = other.url
        await it.app.reload()
        other.pages["/v1/loads"] = reply(b'{"loads": [{"num_running_reqs": 77}]}')
        loads = told(await ask(it, "/v1/loads"))["loads"]
        assert [each["num_running_reqs"] for each in loads] == [0, 77]


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_get_without_a_body(path: str) -> None:
    """With its length; and no other method is taken."""
    async with rig(listen__metrics=True) as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        client = await it.client()
        client.send(get(path, method="HEAD"))
        status, headers = await client.head()
        assert status == 200
        assert int(dict(headers)["content-length"]) > 0
        client.send(post(path, {}))
        response = await client.response()
        assert (response.status, response.header("allow")) == (405, "GET, HEAD")


async def test_draining_says_so() -> None:
    """503, as to every request but those of health."""
    async with rig() as it:
        it.app.dispatcher.drain()
        response = await ask(it, "/server_info")
        assert (response.status, response.code) == (503, "draining")


# What is passed on of the query ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "passed", "ranks"),
    [
        ("", "", [0, 1]),
        ("?include=core,spec", "?include=core%2Cspec", [0, 1]),
        ("?dp_rank=0", "", [0]),
        ("?dp_rank=1&include=all", "?include=all", [1]),
        ("?dp_rank=7", "", []),
        ("?dp_rank=-1", "", []),
        ("?dp_rank=x", "?dp_rank=x", [0, 1]),
        ("?dp_rank=9999999999", "?dp_rank=9999999999", [0, 1]),
        ("?format=json", "", [0, 1]),
        ("?a=%ff&b", "?a=%FF&b=", [0, 1]),
        ("?a=\xe9", "?a=%E9", [0, 1]),
    ],
)
async def test_the_query_of_a_load(query: str, passed: str, ranks: list[int]) -> None:
    """Ranks and the format are ours; what else there is goes on."""
    async with unprobed() as it:
        asked_alone(it, "/v1/loads")
        for upstream in (it.spec, it.base):
            upstream.always(Send(PAGES["/v1/loads"]))
        client = await it.client()
        client.send(get("/x").replace(b"/x", b"/v1/loads" + query.encode("latin-1")))
        response = await client.response()
        if response.status == 400:  # no request that is taken at all
            assert query == "?a=\xe9"
            return
        assert [each["dp_rank"] for each in told(response)["loads"]] == ranks
        lines: set[str] = {each.path for each in _both(it)}
        assert lines == {f"/v1/loads{passed}"}


def _both(it: Rig) -> list[Received]:
    return [*it.spec.requests, *it.base.requests]


async def test_a_load_in_prometheus_format() -> None:
    """With SGLang's names, and two ranks."""
    async with rig() as it:
        for upstream in (it.spec, it.base):
            upstream.pages |= PAGES
        response = await ask(it, "/v1/loads?format=prometheus")
        assert response.header("content-type") == METRICS
        assert response.body.decode() == (
            "# TYPE sglang_num_running_reqs gauge\n"
            'sglang_num_running_reqs{dp_rank="0"} 3\nsglang_num_running_reqs{dp_rank="1"} 3\n'
        )


# What waits here -------------------------------------------------------------------------------


async def test_what_waits_here_waits_at_the_pair() -> None:
    """Requests, not sequences, as SGLang counts: where else would a router see that it is full?"""
    metrics = b"# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs %d\n"
    load = b'{"loads":[{"num_waiting_reqs":%d}]}'
    async with rig(listen__metrics=True, limits__max_in_flight=2, policy__control="base") as it:
        for number, upstream in enumerate((it.spec, it.base), start=1):
            upstream.pages |= {
                "/metrics": reply(metrics % number, content_type=METRICS),
                "/v1/loads": reply(load % number),
            }
        gate = asyncio.Event()
        it.base.always(Gate(gate), Send(reply(b"{}")))
        clients = []
        for _ in range(11):
            clients.append(await it.client())
            clients[-1].send(post("/generate", {"text": "a", "sampling_params": {"n": 2}}))
        await until(lambda: len(it.app.dispatcher.room) == 10, "ten wait")
        assert b"\nsglang:num_queue_reqs 13.0\n" in (await ask(it, "/metrics")).body
        loads = told(await ask(it, "/v1/loads"))["loads"]
        assert [each["num_waiting_reqs"] for each in loads] == [1, 12]
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        assert b"\nsglang:num_queue_reqs 3.0\n" in (await ask(it, "/metrics")).body


# On a pair that works --------------------------------------------------------------------------


async def test_the_simulated_pair() -> None:
    """What bench_serving, one_batch_server, a router and Prometheus look for is there."""
    async with (
        SimulatedPair() as pair,
        rig(
            listen__metrics=True,
            upstreams__admin_api_key="k",
            upstreams__spec__url=pair.spec_url,
            upstreams__base__url=pair.base_url,
        ) as it,
    ):
        info = told(await ask(it, "/server_info"))
        state = info["internal_states"][0]
        assert state["avg_spec_accept_length"] >= 1.0
        assert state["effective_max_running_requests_per_dp"] > 0
        assert info["speculative_algorithm"] == state["speculative_algorithm"] == "EAGLE3"
        assert {"launch_command", "api_key", "admin_api_key"}.isdisjoint({*info, *state})
        assert (info["port"], info["dp_size"], info["tp_size"]) == (
            int(pair.base_url.rpartition(":")[2]),
            1,
            1,
        )
        loads = told(await ask(it, "/v1/loads"))["loads"]
        assert [each["dp_rank"] for each in loads] == [0, 1]
        assert ["speculative" in each for each in loads] == [True, False]

        page = (await ask(it, "/metrics")).body.decode()
        families = {each.name: each for each in text_string_to_metric_families(page)}
        for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput"):
            (sample,) = families[f"sglang:{name}"].samples
            assert set(sample.labels) == {"engine_type", "model_name"}

        client = await it.client()
        admin = {"authorization": "Bearer k"}
        client.send(post("/flush_cache?timeout=1", b"", headers=admin))
        response = await client.response()
        assert response.status == 200
        assert response.body.startswith(b"Cache flushed.\n")
        client.send(post("/abort_request", {"rid": "x"}, headers=admin))
        assert (await client.response()).status == 200
