"""The status page and the history over real sockets, as a browser asks for them."""

import asyncio
import json
from collections.abc import Callable

import pytest

from proxy.control.history_columns import HistoryColumns
from proxy.control.page_files import page_files
from proxy.core.words import SwitchReason
from tests.harness.client import RawClient, Response, get, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import ByHand, reply

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.05
FILES = {file.path: file for file in page_files()}


async def ask(
    it: Rig, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> Response:
    """The admin listener's answer, on a connection of its own."""
    async with await RawClient.connect(it.app.admin_port) as client:
        client.send(get(path, method=method, headers=headers))
        return await client.response(head_only=method == "HEAD")


async def history(it: Rig, query: str = "") -> HistoryColumns:
    """GET /admin/history."""
    answer = await ask(it, f"/admin/history{query}")
    assert answer.status == 200
    return HistoryColumns.model_validate_json(answer.body)


async def once(it: Rig, true: Callable[[HistoryColumns], bool]) -> HistoryColumns:
    """The history as soon as it is as it should be."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not true(told := await history(it)):
        assert asyncio.get_running_loop().time() < deadline, told
        await asyncio.sleep(POLL_SECONDS)
    return told


async def test_every_file_is_served_as_it_is() -> None:
    """To GET, and its head to HEAD; with its type, its tag and the policy."""
    async with rig() as it:
        for path, file in FILES.items():
            whole, head = await ask(it, path), await ask(it, path, method="HEAD")

            assert (whole.status, whole.body) == (200, file.body)
            assert (head.status, head.body) == (200, b"")
            for answer in (whole, head):
                for name, value in file.headers.items():
                    assert answer.header(name) == value, (path, name)
                    assert answer.count(name) == 1, (path, name)


async def test_a_file_that_is_there_already_is_not_sent_again() -> None:
    """304 with its tag, without its bytes."""
    async with rig() as it:
        for path, file in FILES.items():
            tag = {"if-none-match": file.headers["etag"]}
            answer = await ask(it, path, headers=tag)

            assert (answer.status, answer.body) == (304, b"")
            assert answer.header("etag") == file.headers["etag"]


async def test_the_page_changes_nothing_about_who_may_change_something() -> None:
    """A page that came from here under an unknown name still cannot change anything."""
    async with rig() as it:
        page = await ask(it, "/", headers={"host": "evil.example"})
        body = b'{"control": "base"}'
        head = (
            "PUT /admin/control HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with await RawClient.connect(it.app.admin_port) as client:
            client.send(head.encode() + body)
            change = await client.response()

        assert page.status == 200
        assert (change.status, change.code) == (403, "unknown_host")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_page_is_only_read(method: str) -> None:
    """The guard lets a well-formed change through to the route, which has none."""
    async with rig() as it:
        answer = await it.admin(method, "/", {})

        assert answer.status == 405


async def test_what_is_in_flight_is_in_the_history() -> None:
    """What was in flight, and at which upstream."""
    async with rig() as it:
        for upstream in (it.spec, it.base):
            upstream.always(ByHand())
        client = await it.client()
        client.send(post("/generate", {"text": "a"}))
        name = it.app.dispatcher.mode
        (request,) = await it.upstream(name).received(1)

        told = await once(it, lambda each: each.upstreams[name].in_flight[-1:] == [1])

        request.say(reply(b"{}"))
        request.over()
        await client.response()
        assert told.started == it.app.pair.facts.started
        assert told.mode[-1] is name


async def test_a_switch_is_in_the_history_at_once() -> None:
    """With its reason, before the second is over in which it happened."""
    async with rig() as it:
        word = it.app.dispatcher.mode.other
        await it.admin("PUT", "/admin/control", {"control": word})

        (last, *_) = (await history(it)).switches
        assert (last.to, last.reason) == (word, SwitchReason.CONTROL)


async def test_who_comes_again_gets_only_what_is_new() -> None:
    """The rows that came after those it has; none of them twice, and none left out."""
    async with rig() as it:
        first = await once(it, lambda each: len(each.at) > 1)
        await once(it, lambda each: len(each.at) > len(first.at))

        again = await history(it, f"?after={first.at[-1]}")

        assert again.at
        whole = await history(it, "?after=-1")
        assert whole.at[: len(first.at) + len(again.at)] == first.at + again.at


@pytest.mark.parametrize("after", ["", "soon", "nan", "inf", "1e999"])
async def test_what_is_no_second_is_refused(after: str) -> None:
    """With the name of what is wrong."""
    async with rig() as it:
        answer = await ask(it, f"/admin/history?after={after}")

        assert answer.status == 422
        assert json.loads(answer.body)["error"]["param"] == "after"
