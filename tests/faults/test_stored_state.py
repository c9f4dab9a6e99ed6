"""What lives in one server goes to base, and is found again there; never at spec, which has it not.

Real engines say the same of sessions (`tests/engines/test_one_door.py`) and of what they store
(`tests/engines/test_entrusted.py`); here a server can be away, full, or alone in storing.
"""

import json

import pytest

from proxy.core.words import Control, UpstreamName
from tests.harness.client import Response, get, post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import ScriptedUpstream, Send, reply

REASON = "eligibility:stored_state"
STORED = {"id": "resp_1", "object": "response", "status": "completed"}

ASKS: dict[str, bytes] = {
    "stored": post("/v1/responses", {"model": "m", "input": "a", "store": True}),
    "in the background": post("/v1/responses", {"model": "m", "input": "a", "background": True}),
    "continued": post(
        "/v1/responses", {"model": "m", "input": "b", "previous_response_id": "resp_1"}
    ),
    "a stream continued": post(
        "/v1/responses",
        {"model": "m", "input": "b", "previous_response_id": "resp_1", "stream": True},
    ),
    "found": get("/v1/responses/resp_1"),
    "head": get("/v1/responses/resp_1", method="HEAD"),
    "found by a client's own id": get("/v1/responses/resp_my.id%20%C3%A9"),
    "cancelled": post("/v1/responses/resp_1/cancel", {}),
    "cancelled by a client's own id": post("/v1/responses/resp_my.id%20%C3%A9/cancel", {}),
    "opened": post("/open_session", {"capacity_of_str_len": 1000}),
    "opened by a GET": post("/open_session", {"capacity_of_str_len": 9}, method="GET"),
    "gone on with": post("/generate", {"text": "a", "session_params": {"id": "s", "rid": None}}),
    "closed": post("/close_session", {"session_id": "s"}),
    "closed by a GET": post("/close_session", {"session_id": "s"}, method="GET"),
}


async def ask(it: Rig, wanted: bytes) -> Response:
    """The answer, over a connection of its own."""
    client = await it.client()
    client.send(wanted)
    return await client.response(head_only=wanted.startswith(b"HEAD"))


@pytest.mark.parametrize("what", ASKS)
@pytest.mark.parametrize("control", [Control.AUTO, Control.SPEC])
async def test_it_goes_to_base(what: str, control: Control) -> None:
    """Whatever the mode and the operator say; as it came, and it is no load where none is made."""
    async with rig(policy__control=control.value) as it:
        it.base.script(Send(reply(json.dumps(STORED).encode())))
        response = await ask(it, ASKS[what])
        assert response.status == 200
        assert response.header("x-specswitch-upstream") == "base"
        assert response.header("x-specswitch-reason") == REASON
        (received,) = it.base.requests
        assert (
            received.line.partition(" ")[2] == ASKS[what].decode().partition(" ")[2].split("\r")[0]
        )
        assert received.body == ASKS[what].partition(b"\r\n\r\n")[2]
        assert it.spec.requests == []


@pytest.mark.parametrize("what", ASKS)
async def test_without_base_it_is_nowhere(what: str) -> None:
    """503 `ineligible` with the rule and when to come back; spec hears nothing of it."""
    async with rig(timeouts__wait_for_upstream=0.1, health__fall=1) as it:
        await it.base.stop()
        await until(lambda: not it.healthy(UpstreamName.BASE), "base is ejected")
        response = await ask(it, ASKS[what])
        assert response.status == 503
        assert response.header("retry-after") == "5"
        if what != "head":
            assert response.code == "ineligible"
            assert "(stored_state)" in json.loads(response.body)["error"]["message"]
        assert it.spec.requests == []
        assert (await ask(it, post("/generate", {"text": "a"}))).status == 200


async def test_it_is_found_again() -> None:
    """By the same id, once base is back: nothing of it was kept here, and nothing is lost here."""
    async with rig(timeouts__wait_for_upstream=0.1, health__fall=1, health__rise=1) as it:
        it.base.always(Send(reply(json.dumps(STORED).encode())))
        made = json.loads((await ask(it, ASKS["stored"])).body)
        again = get(f"/v1/responses/{made['id']}")
        assert json.loads((await ask(it, again)).body) == STORED

        it.base.ready = False
        await until(lambda: not it.healthy(UpstreamName.BASE), "base is ejected")
        assert (await ask(it, again)).code == "ineligible"
        it.base.ready = True
        await until(lambda: it.healthy(UpstreamName.BASE), "base is back")
        response = await ask(it, again)
        assert (response.status, json.loads(response.body)) == (200, STORED)
        assert it.spec.requests == []


async def test_maint_refuses_at_once() -> None:
    """The operator has said that base is not coming soon."""
    async with rig(timeouts__wait_for_upstream=60.0) as it:
        await it.admin("PUT", "/admin/upstreams/base", {"admin_state": "maint"})
        assert (await ask(it, ASKS["found"])).code == "ineligible"


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_a_refusal_of_base_passes(status: str) -> None:
    """It is not tried at spec, which would answer that it knows no such thing."""
    async with rig() as it:
        it.base.script(Send(reply(b'{"error": "full"}', status=status)))
        response = await ask(it, ASKS["continued"])
        assert response.status == int(status[:3])
        assert it.spec.requests == []


PLAIN = {"model": "m", "input": "a"}


@pytest.mark.parametrize("stored", [{}, {"store": False}, {"store": None}, {"background": False}])
async def test_a_plain_response_is_generation_like_any(stored: dict[str, object]) -> None:
    """Where no server has a store, only an explicit `store: true` keeps it from spec."""
    async with rig() as it:
        response = await ask(it, post("/v1/responses", {**PLAIN, **stored}))
        assert response.header("x-specswitch-upstream") == "spec"


def storing(*, speculative: bool, store: bool = True) -> ScriptedUpstream:
    """A server that was started with a store, or says that it was not."""
    upstream = ScriptedUpstream(speculative=speculative)
    assert upstream.info is not None
    upstream.info["enable_response_store"] = store
    return upstream


@pytest.mark.parametrize("which", [("spec", "base"), ("spec",), ("base",)])
async def test_a_plain_response_is_stored_where_servers_store(which: tuple[str, ...]) -> None:
    """SGLang's `store` is true unless the request says otherwise; so it is found again, at base."""
    spec = storing(speculative=True, store="spec" in which)
    base = storing(speculative=False, store="base" in which)
    async with rig(spec=spec, base=base) as it:
        it.base.always(Send(reply(json.dumps(STORED).encode())))
        for stored in ({}, {"store": None}, {"store": True}):
            response = await ask(it, post("/v1/responses", {**PLAIN, **stored}))
            assert response.header("x-specswitch-upstream") == "base"
            assert response.header("x-specswitch-reason") == REASON
            made = json.loads(response.body)["id"]
            assert json.loads((await ask(it, get(f"/v1/responses/{made}"))).body) == STORED
        assert it.spec.requests == []


@pytest.mark.parametrize(
    "asked",
    [
        post("/v1/responses", {**PLAIN, "store": False}),
        post("/v1/chat/completions", {"model": "m", "messages": []}),
        post("/generate", {"text": "a"}),
    ],
)
async def test_what_is_not_stored_is_generation_like_any(asked: bytes) -> None:
    """With a store too: what says so, and every other path."""
    async with rig(spec=storing(speculative=True), base=storing(speculative=False)) as it:
        response = await ask(it, asked)
        assert response.header("x-specswitch-upstream") == "spec"
