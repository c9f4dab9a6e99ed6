"""One request as its client sees it: times, counts, and every bad end by its kind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from proxy.core.peek import Dialect
from proxy.errors import ConfigError, SpecswitchError
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from proxy.tools.asking import Fault, Question, Sample, ask, chat, connect, model_of
from proxy.tools.listening import Reading
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    ByHand,
    Fin,
    Reset,
    ScriptedUpstream,
    Send,
    Silence,
    Step,
    chunk,
    event,
    reply,
    stream,
)

HELLO = [{"role": "user", "content": "hello"}]


def _delta(text: str, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
LAST = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
GOOD = (ROLE, _delta("a"), _delta("bcd"), LAST, USAGE, DONE)


def _ticks() -> Callable[[], float]:
    """A clock that is a second later whenever it is read."""
    numbers: Iterator[int] = count(100)
    return lambda: float(next(numbers))


def _chat(**more: object) -> Question:
    return chat(HELLO, model="tiny", max_tokens=5, extra=more)


@asynccontextmanager
async def _upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(speculative=True) as upstream:
        yield upstream


async def _asked(*steps: Step, timeout: float = 10.0, question: Question | None = None) -> Sample:  # noqa: ASYNC109 - what the client is given
    """What came of a request that is answered by `steps`."""
    async with _upstream() as upstream, connect(upstream.url, timeout=timeout) as client:
        upstream.script(*steps)
        clock = asyncio.get_running_loop().time
        return await ask(client, question or _chat(), clock=clock)


async def test_a_good_stream() -> None:
    """Counts come from usage, and nothing is wrong."""
    sample = await _asked(Send(stream(*GOOD)))
    assert (sample.ok, sample.error, sample.fault, sample.status) == (True, None, None, 200)
    assert (sample.prompt_tokens, sample.output_tokens) == (7, 5)
    assert sample.finish_reason == "length"
    assert sample.acceptance_length is None
    assert (sample.upstream, sample.reason) == (None, None)


async def test_the_times_of_the_tokens() -> None:
    """The first text and the last token count, not the role before nor the usage after."""
    loop = asyncio.get_running_loop()
    stamps: list[float] = []
    async with _upstream() as upstream, connect(upstream.url) as client:
        upstream.script(ByHand())
        now = 0.0

        def clock() -> float:
            stamps.append(now)
            return now

        asking = loop.create_task(ask(client, _chat(), clock=clock))
        (request,) = await upstream.received(1)
        request.say(STREAM_HEAD)
        for now, part in ((1.0, ROLE), (2.0, _delta("a")), (4.0, _delta("bcd"))):
            request.say(chunk(part))
            await _until(lambda: now in stamps)  # noqa: B023 - awaited within the turn
        for now, part in ((6.0, LAST), (9.0, USAGE)):
            request.say(chunk(part))
            await _until(lambda: now in stamps)  # noqa: B023 - the same
        now = 10.0
        request.say(chunk(DONE) + END)
        sample = await asking
    assert (sample.first_token_seconds, sample.last_token_seconds) == (2.0, 6.0)
    assert sample.duration_seconds == 10.0
    assert sample.seconds_per_token == 1.0


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the request is looked at from outside
            await asyncio.sleep(0.001)


async def test_a_stream_cut_anywhere_says_the_same() -> None:
    """However the bytes are split, the sample is the same."""
    whole = b"".join(GOOD)
    for at in range(1, len(whole), 7):
        pieces = chunk(whole[:at]) + chunk(whole[at:])
        sample = await _asked(Send(STREAM_HEAD + pieces + END))
        assert sample.ok, (at, sample.error)
        assert (sample.output_tokens, sample.finish_reason) == (5, "length")


async def test_huge_events_split_anywhere() -> None:
    """Events of a quarter of a mebibyte do not hide the end of the stream."""
    whole = b"".join((ROLE, _delta("x" * 250_000), _delta("y" * 250_000), LAST, USAGE, DONE))
    size = 10_007
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    sample = await _asked(Send(STREAM_HEAD + b"".join(map(chunk, pieces)) + END))
    assert sample.ok, sample.error
    assert sample.output_tokens == 5
    assert sample.last_token_seconds is not None


def test_the_end_of_a_long_piece() -> None:
    """What does not fit is cut off at the front: the end says why it ended, and when."""
    reading = Reading(Dialect.OPENAI_CHAT)
    reading.feed(b"".join([_delta("x" * 100)] * 2_000 + [LAST, USAGE, DONE]), 5.0)
    assert reading.last().finish_reason == "length"
    assert reading.last().token_at == 5.0


async def test_an_error_event_in_a_200() -> None:
    """It is an error with the engine's words, whatever else came, also before a clean end."""
    error = event({"error": {"message": "out of memory", "type": "E", "code": 500}})
    sample = await _asked(Send(stream(ROLE, _delta("a"), error, DONE)))
    assert sample.fault is Fault.ERROR_EVENT
    assert sample.error == "an error event inside a 200: 500: out of memory"
    assert sample.status == 200
    assert not sample.refused


async def test_an_error_event_before_a_cut() -> None:
    """The engine's reason wins over the way in which the connection ended."""
    error = event({"error": {"message": "died", "code": "upstream_reset"}})
    sample = await _asked(Send(STREAM_HEAD + chunk(_delta("a")) + chunk(error)), Reset())
    assert sample.fault is Fault.ERROR_EVENT
    assert sample.error is not None
    assert "died" in sample.error


async def test_a_full_queue_inside_a_stream() -> None:
    """SGLang's 503 in an event of a 200 is a refusal, as it is as a status."""
    error = event({"error": {"message": "The request queue is full.", "code": 503}})
    inside = await _asked(Send(stream(error, DONE)))
    outside = await _asked(
        Send(reply(b'{"error": {"message": "full"}}', status="429 Too Many Requests"))
    )
    assert (inside.fault, outside.fault) == (Fault.REFUSED, Fault.REFUSED)
    assert inside.refused
    assert outside.error == "429: full"
    assert outside.status == 429


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"object":"error","message":"bad","code":400}', "400: bad"),
        (b'{"error":"bad"}', "400: bad"),
        (b'{"detail":[{"loc":["body"]}]}', "400: [{'loc': ['body']}]"),
        (b"oh\n no", "400: oh no"),
        (b"", "400: no body"),
        (b"{}", "400: no message"),
    ],
)
async def test_another_status(body: bytes, said: str) -> None:
    """Whatever its body looks like, one line says what the server said."""
    sample = await _asked(Send(reply(body, status="400 Bad Request")))
    assert (sample.fault, sample.error) == (Fault.STATUS, said)


async def test_a_stream_that_is_cut() -> None:
    """Tokens that came count for nothing when the rest does not come."""
    reset = await _asked(Send(STREAM_HEAD + chunk(ROLE) + chunk(_delta("a"))), Reset())
    closed = await _asked(Send(STREAM_HEAD + chunk(_delta("a"))), Fin())
    assert (reset.fault, closed.fault) == (Fault.CUT, Fault.CUT)
    assert reset.first_token_seconds is not None
    assert reset.output_tokens is None


async def test_a_stream_without_its_own_end() -> None:
    """HTTP has ended well, but [DONE] is missing."""
    sample = await _asked(Send(stream(*GOOD[:-1])))
    assert sample.fault is Fault.UNFINISHED


async def test_an_end_without_a_blank_line() -> None:
    """The last event counts though the server did not close it."""
    sample = await _asked(Send(stream(*GOOD[:-1], b"data: [DONE]")))
    assert sample.ok


async def test_no_usage() -> None:
    """A server that does not count gives an answer without counts, not one with guesses."""
    sample = await _asked(Send(stream(ROLE, _delta("a"), LAST, DONE)))
    assert sample.ok
    assert (sample.output_tokens, sample.prompt_tokens) == (None, None)
    assert sample.seconds_per_token is None


async def test_a_whole_answer_where_a_stream_was_asked_for() -> None:
    """It cannot be timed, so it is an error."""
    sample = await _asked(Send(reply(b'{"choices": []}')))
    assert sample.fault is Fault.NO_STREAM


@pytest.mark.parametrize("sent", [b"", STREAM_HEAD, STREAM_HEAD + chunk(_delta("a"))])
async def test_silence(sent: bytes) -> None:
    """A server that never answers, or falls silent, ends at the timeout."""
    sample = await _asked(Send(sent), Silence(), timeout=0.2)
    assert sample.fault is Fault.TIMEOUT
    assert sample.error is not None
    assert sample.error.startswith("no end within")
    assert sample.duration_seconds > 0.19  # two clocks are read, in whole milliseconds


async def test_a_server_that_dribbles() -> None:
    """The timeout is for the request as a whole: a byte now and then does not extend it."""
    loop = asyncio.get_running_loop()
    async with _upstream() as upstream, connect(upstream.url, timeout=0.3) as client:
        upstream.script(ByHand())
        asking = loop.create_task(ask(client, _chat(), clock=loop.time))
        (request,) = await upstream.received(1)
        request.say(STREAM_HEAD)
        while not asking.done():
            request.say(chunk(_delta("a")))
            await asyncio.wait({asking}, timeout=0.05)
        sample = await asking
    assert sample.fault is Fault.TIMEOUT
    assert sample.first_token_seconds is not None


async def test_no_head() -> None:
    """A connection that ends before the head is told from one that was never made."""
    lost = await _asked(Reset())
    async with _upstream() as upstream:
        url = upstream.url
    async with connect(url) as client:
        refused = await ask(client, _chat(), clock=_ticks())
    assert (lost.fault, lost.status) == (Fault.LOST, None)
    assert (refused.fault, refused.status) == (Fault.CONNECT, None)
    assert refused.duration_seconds > 0


async def test_where_it_went() -> None:
    """The headers of specswitch are kept."""
    head = STREAM_HEAD[:-2] + b"x-specswitch-upstream: spec\r\nx-specswitch-reason: mode\r\n\r\n"
    sample = await _asked(Send(head + b"".join(map(chunk, GOOD)) + END))
    assert (sample.upstream, sample.reason) == ("spec", "mode")


async def test_what_is_sent() -> None:
    """The body is the one that was made, and no answer is asked for compressed."""
    async with _upstream() as upstream, connect(upstream.url, api_key="k") as client:
        upstream.script(Send(stream(*GOOD)))
        question = chat(HELLO, model="m", max_tokens=9, ignore_eos=True, details=True)
        await ask(client, question, clock=_ticks())
        (request,) = upstream.requests
    assert msgspec.json.decode(request.body) == {
        "model": "m",
        "messages": HELLO,
        "max_tokens": 9,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "return_spec_tokens_details": True,
    }
    assert request.header("accept-encoding") == "identity"
    assert request.header("authorization") == "Bearer k"
    assert question.output_tokens == 9


def test_several_sequences() -> None:
    """TPOT is that of one sequence: n of them share the time, not the tokens."""
    assert _chat(n=4).sequences == 4
    assert _chat(n="4").sequences == 1
    sample = Sample(
        sent_at=0.0,
        first_token_seconds=1.0,
        last_token_seconds=3.0,
        duration_seconds=3.0,
        prompt_tokens=1,
        output_tokens=44,
        finish_reason=None,
        acceptance_length=None,
        status=200,
        error=None,
        upstream=None,
        reason=None,
        sequences=4,
    )
    assert sample.seconds_per_token == pytest.approx(0.2)


@pytest.mark.parametrize("which", ["spec", "base"])
async def test_the_simulated_pair(which: str) -> None:
    """Its figures are read: counts, and the acceptance length of the one that speculates."""
    async with SimulatedPair(PairOptions(time_scale=100.0)) as pair:
        url = pair.spec_url if which == "spec" else pair.base_url
        async with connect(url) as client:
            model = await model_of(client)
            question = chat(HELLO, model=model, max_tokens=40, ignore_eos=True, details=True)
            sample = await ask(client, question, clock=asyncio.get_running_loop().time)
            generate = Question(
                path="/generate",
                body=b'{"text": "hi", "stream": true, "sampling_params": {"max_new_tokens": 20,'
                b' "ignore_eos": true}}',
            )
            other = await ask(client, generate, clock=asyncio.get_running_loop().time)
    assert sample.ok, sample.error
    assert other.ok, other.error
    assert (sample.output_tokens, other.output_tokens) == (40, 20)
    assert (sample.finish_reason, other.finish_reason) == ("length", "length")
    for one in (sample, other):
        assert (one.acceptance_length is not None) is (which == "spec")
        assert one.seconds_per_token is not None


async def test_a_full_queue_on_generate() -> None:
    """SGLang's own path says it in the finish reason of its one event."""
    full = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    made = event({"text": "", "output_ids": [], "meta_info": {"id": "x", "finish_reason": full}})
    question = Question(path="/generate", body=b"{}")
    sample = await _asked(Send(stream(made, DONE)), question=question)
    assert sample.fault is Fault.REFUSED
    assert sample.error is not None
    assert "queue is full" in sample.error
    assert (sample.first_token_seconds, sample.last_token_seconds) == (None, None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(b'{"data": []}'), "lists no model"),
        (reply(b"[]"), "does not list models"),
        (reply(b"{}", status="401 Unauthorized"), "answers 401"),
    ],
)
async def test_a_server_without_models(answer: bytes, said: str) -> None:
    """It is said what is wrong, and where."""
    async with _upstream() as upstream, connect(upstream.url) as client:
        upstream.script(Send(answer))
        with pytest.raises(SpecswitchError, match=said):
            await model_of(client)
    async with connect(upstream.url) as client:
        with pytest.raises(SpecswitchError, match="does not answer"):
            await model_of(client)


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "http://", "http://[::1"])
def test_a_url_that_is_none(url: str) -> None:
    """It is refused by name before anything is sent."""
    with pytest.raises(SpecswitchError, match="no URL"):
        connect(url)


@pytest.mark.parametrize(
    "url", ["http://me:secret@127.0.0.1:1", "http://127.0.0.1:99999", "ftp://x", "http://", "x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is asked, and without a password in the message."""
    with pytest.raises(ConfigError) as raised:
        connect(url)
    assert "secret" not in str(raised.value)
