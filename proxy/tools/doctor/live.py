"""A few requests to each server, one at a time, and what they show.

`try_out` asks and concludes nothing; `check_live` concludes and asks nothing.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

from proxy.core.fields import Fields
from proxy.core.words import UpstreamName
from proxy.tools.asking import Sample, ask, chat
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo

PROMPTS: Final = (
    "Write a short story about a lighthouse keeper who repairs clocks.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List ten facts about the planet Saturn, one on each line.",
)
"""Of three kinds, since acceptance depends on what is written: prose, code, a list."""

REQUESTS: Final = 2 * len(PROMPTS) + 2
"""To one server: a first one, a stream and a whole answer for each prompt, and a bad one."""

_TOKENS: Final = 64
_GOOD_ACCEPTANCE: Final = 1.5
"""Output tokens for each verification below which drafting costs more than it brings: a step with
three drafts takes about 1.3 to 1.5 times a plain one (EAGLE-3, arXiv 2503.01840, table 3)."""

_SLOW_TTFT_SECONDS: Final = 2.0
"""For a prompt of some twenty tokens on an idle server; tens of milliseconds are usual."""

_OK: Final = 200
_BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a few requests to one server showed."""

    name: UpstreamName
    samples: tuple[Sample, ...]
    """Streams of PROMPTS. An earlier one, which may have compiled kernels, is not among them."""
    texts: tuple[str | None, ...]
    """Greedy answers to PROMPTS, not streamed; None where there was none."""
    refusal: tuple[int, bool] | None
    """Status of the answer to a bad request, and whether it is an error in JSON."""
    others: int | None = None
    """Requests of others that it had when it was read; None where it does not say."""

    @property
    def good(self) -> tuple[Sample, ...]:
        """The samples that ended well."""
        return tuple(sample for sample in self.samples if sample.ok)

    @property
    def acceptance_length(self) -> float | None:
        """Output tokens for each verification, over all that told it."""
        told = [
            (sample.output_tokens, sample.acceptance_length)
            for sample in self.good
            if sample.output_tokens and sample.acceptance_length
        ]
        rounds = sum(tokens / length for tokens, length in told)
        return sum(tokens for tokens, _ in told) / rounds if rounds else None


async def try_out(
    client: httpx2.AsyncClient,
    info: ServerInfo,
    *,
    clock: Callable[[], float],
    tick: Callable[[str], None],
) -> Live:
    """Send the server a few requests, one at a time. Never raises for what it answers."""
    model = info.served_model or "default"
    questions = [
        chat(_messages(prompt), model=model, max_tokens=_TOKENS, details=True) for prompt in PROMPTS
    ]
    tick(f"{info.name}: a first request")
    first = await ask(client, questions[0], clock=clock)
    if not first.ok:
        # A server that fails one fails all, and may take its whole time for each.
        samples: list[Sample] = [first]
        texts: list[str | None] = []
        refusal = None
    else:
        samples, texts = [], []
        for question, prompt in zip(questions, PROMPTS, strict=True):
            tick(f"{info.name}: a stream")
            samples.append(await ask(client, question, clock=clock))
            tick(f"{info.name}: a whole answer")
            texts.append(await _text(client, model, prompt))
        tick(f"{info.name}: a bad request")
        refusal = await _refusal(client, model)
    return Live(
        name=info.name,
        samples=tuple(samples),
        texts=tuple(texts),
        refusal=refusal,
        others=info.running,
    )


def check_live(lives: Mapping[UpstreamName, Live]) -> Iterator[Finding]:
    """What the requests showed, of each server and of both together."""
    for live in lives.values():
        yield from _check_others(live)
        yield from _check_streams(live)
        if live.good:
            yield from _check_usage(live)
            yield from _check_ttft(live)
            yield from _check_acceptance(live)
            yield from _check_refusal(live)
    if len(lives) == len(UpstreamName):
        spec, base = lives[UpstreamName.SPEC], lives[UpstreamName.BASE]
        yield from _check_prompts(spec, base)
        yield from _check_texts(spec, base)


def _messages(prompt: str) -> list[Mapping[str, object]]:
    return [{"role": "user", "content": prompt}]


async def _text(client: httpx2.AsyncClient, model: str, prompt: str) -> str | None:
    body = {
        "model": model,
        "messages": _messages(prompt),
        "max_tokens": _TOKENS,
        "temperature": 0,
    }
    answer = await _post(client, body)
    if answer is None or answer[0] != _OK:
        return None
    message = next(iter(answer[1].many("choices")), Fields()).within("message")
    written = [message.text(part) or "" for part in ("reasoning_content", "content")]
    return "\n".join(written).strip() or None


async def _refusal(client: httpx2.AsyncClient, model: str) -> tuple[int, bool] | None:
    """How it answers a request without messages."""
    answer = await _post(client, {"model": model, "max_tokens": 1})
    if answer is None:
        return None
    status, fields = answer
    # SGLang's is flat, OpenAI's is below `error`.
    return status, any(each.text("message") for each in (fields, fields.within("error")))


async def _post(client: httpx2.AsyncClient, body: object) -> tuple[int, Fields] | None:
    """Status and object of the answer; None where there was none."""
    try:
        async with asyncio.timeout(client.timeout.read):
            answer = await client.post("/v1/chat/completions", json=body)
        return answer.status_code, Fields(json.loads(answer.content))
    except (TimeoutError, httpx2.HTTPError):
        return None  # a finding of _check_texts: `try_out` concludes nothing
    except (ValueError, RecursionError):
        return answer.status_code, Fields()


def _found(
    live: Live, code: str, severity: Severity, what: str, why: str = "", change: str = ""
) -> Finding:
    return Finding(
        code=f"live.{code}", severity=severity, what=what, why=why, change=change, server=live.name
    )


def _check_others(live: Live) -> Iterator[Finding]:
    if live.others:
        yield _found(
            live,
            "busy",
            Severity.NOTE,
            f"it had {live.others} requests of others",
            "times and acceptance are those of a server under load",
            "run doctor again while nothing else runs",
        )


def _check_streams(live: Live) -> Iterator[Finding]:
    failed = [sample for sample in live.samples if not sample.ok]
    if not failed:
        count = len(live.samples)
        yield _found(live, "stream", Severity.OK, f"{count} streams, each with a clean end")
        return
    yield _found(
        live,
        "stream",
        Severity.ERROR,
        f"{len(failed)} of {len(live.samples)} short streams failed: {failed[0].error}",
        "it does not serve what clients will ask for",
        "see its log; `curl` its /v1/chat/completions with stream true",
    )


def _check_usage(live: Live) -> Iterator[Finding]:
    if all(sample.output_tokens for sample in live.good):
        yield _found(live, "usage", Severity.OK, "streams end with their usage")
        return
    yield _found(
        live,
        "usage",
        Severity.WARNING,
        "streams end without their usage, although it is asked for",
        "a speculative chunk holds several tokens, so without usage no rate can be measured, and "
        "`calibrate` cannot conclude",
        "a version that knows stream_options.include_usage",
    )


def _check_ttft(live: Live) -> Iterator[Finding]:
    times = [s.first_token_seconds for s in live.good if s.first_token_seconds is not None]
    if not times:
        return
    best = min(times)
    if best <= _SLOW_TTFT_SECONDS:
        yield _found(live, "ttft", Severity.OK, f"first token after {best * 1000:.0f} ms")
        return
    yield _found(
        live,
        "ttft",
        Severity.WARNING,
        f"first token after {best:.1f} s at best, of a short prompt",
        "a lone short prompt should take well under a second, unless others have the GPU",
        "run doctor again while both are idle; then look for memory that is full, or for what else "
        "uses the GPU",
    )


def _check_acceptance(live: Live) -> Iterator[Finding]:
    length = live.acceptance_length
    if live.name is UpstreamName.BASE:
        if length is not None and length > 1.0:
            yield _found(
                live,
                "base_drafts",
                Severity.ERROR,
                f"its answers tell of accepted drafts, {length:.2f} tokens a step",
                "base must not speculate: rules that send requests there rely on it",
                "start it without any --speculative flag",
            )
        return
    if length is None:
        yield _found(
            live,
            "acceptance_unknown",
            Severity.WARNING,
            "its answers do not tell of accepted drafts, although they were asked to",
            "either it does not speculate, or its version does not know return_spec_tokens_details",
            "check its --speculative flags; SGLang 0.5.23 tells",
        )
    elif length < _GOOD_ACCEPTANCE:
        yield _found(
            live,
            "acceptance_low",
            Severity.WARNING,
            f"{length:.2f} tokens a step are kept, of a few prompts",
            f"below about {_GOOD_ACCEPTANCE} drafting costs more than it brings, at any load",
            "a draft that was trained for this model and its chat template "
            "(--speculative-draft-model-path), or no speculation",
        )
    else:
        yield _found(live, "acceptance", Severity.OK, f"{length:.2f} tokens a step are kept")


def _check_refusal(live: Live) -> Iterator[Finding]:
    if live.refusal is None:
        return
    status, in_json = live.refusal
    if status == _BAD_REQUEST and in_json:
        yield _found(live, "error_shape", Severity.OK, "a bad request gets 400 and says why")
        return
    form = "an error in JSON" if in_json else "no error in JSON"
    yield _found(
        live,
        "error_shape",
        Severity.NOTE,
        f"a request without messages is answered with {status} and {form}",
        "SGLang answers 400; 5xx answers count against a server's health",
        "nothing, if this is not SGLang; else see its log",
    )


def _check_prompts(spec: Live, base: Live) -> Iterator[Finding]:
    """The same chat takes as many tokens on both, or it is not the same text that they see."""
    pairs = [
        (mine.prompt_tokens, its.prompt_tokens)
        for mine, its in zip(spec.samples, base.samples, strict=False)
        if mine.prompt_tokens is not None and its.prompt_tokens is not None
    ]
    different = [pair for pair in pairs if pair[0] != pair[1]]
    if different:
        mine, its = different[0]
        yield Finding(
            code="live.prompt_tokens",
            severity=Severity.ERROR,
            what=f"the same chat has {mine} tokens on spec and {its} on base",
            why="the two have different chat templates or tokenizers, so they answer different "
            "prompts",
            change="the same --tokenizer-path and --chat-template on both, and the same files",
        )
    elif pairs:
        yield Finding(
            code="live.prompt_tokens",
            severity=Severity.OK,
            what="the same chats have the same number of tokens on both",
        )


def _check_texts(spec: Live, base: Live) -> Iterator[Finding]:
    pairs = [
        (mine, its)
        for mine, its in zip(spec.texts, base.texts, strict=False)
        if mine is not None and its is not None
    ]
    missing = [live.name for live in (spec, base) if live.good and None in live.texts]
    if missing:
        yield Finding(
            code="live.no_text",
            severity=Severity.WARNING,
            what=f"no text in an answer that was not streamed, of {' and '.join(missing)}",
            why="streams work there and whole answers do not, or they are empty",
            change="ask it with `curl` and stream false",
        )
    if not pairs:
        return
    agree = [_agreement(mine, its) for mine, its in pairs]
    same = sum(share >= 1.0 for share in agree)
    if same == len(pairs):
        yield Finding(
            code="live.greedy",
            severity=Severity.OK,
            what=f"{same} of {len(pairs)} greedy answers are the same on both",
        )
        return
    yield Finding(
        code="live.greedy",
        severity=Severity.NOTE,
        what=f"{same} of {len(pairs)} greedy answers are the same on both; one parts after "
        f"{min(agree):.0%} of its text",
        why="batches of other shapes round otherwise, and where two tokens are nearly as likely "
        "the texts part; from the first words on it would mean other weights or templates",
        change="nothing, if they part late; else compare model, revision, dtype and templates",
    )


def _agreement(mine: str, its: str) -> float:
    """The share of the shorter text until the two differ; 1 only if they are equal."""
    if mine == its:
        return 1.0
    both: Sequence[tuple[str, str]] = list(zip(mine, its, strict=False))
    until = next((at for at, (one, other) in enumerate(both) if one != other), len(both))
    return min(until / max(1, len(both)), 0.99)
