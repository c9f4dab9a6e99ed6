"""Replies in the shapes of SGLang 0.5.23: events of a stream, and bodies.

The shapes are those of recorded answers, the order of the fields included. Where the recordings
say nothing (several replies to one prompt), the source of that version was followed. Not made:
log probabilities, tool calls, cached prompts.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from proxy.sim.asks import Shape, openai_error
from proxy.sim.generation import QUEUE_FULL, Generation, Reply

Fields = dict[str, object]

DONE: Final = b"data: [DONE]\n\n"
"""The end of every stream."""

_VERSION: Final = "default"
"""SGLang's name for weights that were never exchanged."""

_SERVICE_UNAVAILABLE: Final = 503


def event(payload: object) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % msgspec.json.encode(payload)


def refusal() -> Fields:
    """The body with which a full queue is answered where nothing is streamed."""
    return openai_error(QUEUE_FULL, str(_SERVICE_UNAVAILABLE), _SERVICE_UNAVAILABLE)


def events(generation: Generation) -> list[bytes]:
    """The events that the client has not been sent yet; the last of them close it.

    Tokens that came since the last call share an event, as they do in SGLang when a client reads
    slowly.
    """
    shape = generation.ask.shape
    if generation.refused:
        generation.closed = True
        return [*_refused_events(generation), DONE]
    made = [*map(event, _FRESH[shape](generation))]
    if generation.complete:
        generation.closed = True
        made += [*map(event, _CLOSING[shape](generation)), DONE]
    return made


def _unbegun(reply: Reply, reason: Fields, seconds: float) -> Fields:
    """What /generate tells about a reply that has ended, after `seconds`, without having begun."""
    return {
        "id": reply.rid,
        "finish_reason": reason,
        "weight_version": _VERSION,
        "e2e_latency": seconds,
    }


def body(generation: Generation) -> object:
    """The whole answer to a request that is not streamed."""
    match generation.ask.shape:
        case Shape.CHAT:
            return _openai_body(generation, "chat.completion", _chat_choice)
        case Shape.COMPLETION:
            return _openai_body(generation, "text_completion", _completion_choice)
        case Shape.GENERATE:
            listed = [_generated(generation, reply) for reply in generation.replies]
            return listed[0] if generation.ask.single else listed


def _refused_events(generation: Generation) -> list[bytes]:
    """A full queue inside a stream: SGLang has said 200 before it knew."""
    if generation.ask.shape is not Shape.GENERATE:
        error = openai_error(QUEUE_FULL, "SERVICE_UNAVAILABLE", _SERVICE_UNAVAILABLE)
        # The one event that SGLang writes with spaces: another encoder makes it.
        return [b"data: %b\n\n" % json.dumps({"error": error}).encode()]
    reason: Fields = {"type": "abort", "message": QUEUE_FULL, "status_code": _SERVICE_UNAVAILABLE}
    return [
        event({"text": "", "output_ids": [], "meta_info": _unbegun(reply, reason, 0.0)})
        for reply in generation.replies
        if reply.refused
    ]


def _head(generation: Generation, kind: str) -> Fields:
    return {
        "id": generation.ask.rids[0],
        "object": kind,
        "created": int(generation.received_at),
        "model": generation.ask.model,
    }


def _usage(generation: Generation) -> Fields:
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _openai_body(
    generation: Generation, kind: str, choice: Callable[[Generation, int, Reply], Fields]
) -> Fields:
    longest = max(reply.produced for reply in generation.replies)
    whole = {
        **_head(generation, kind),
        "choices": [choice(generation, i, reply) for i, reply in enumerate(generation.replies)],
        "usage": _usage(generation),
        "metadata": {"weight_version": _VERSION, "weight_versions": _weights(longest)},
    }
    details = _spec_details(generation)
    return whole if details is None else {**whole, "sglext": details}


def _ending(reply: Reply) -> Fields:
    return {
        "logprobs": None,
        "finish_reason": reply.finish_reason,
        "matched_stop": reply.matched_stop,
    }


def _chat_choice(generation: Generation, index: int, reply: Reply) -> Fields:
    message = {"role": "assistant", "content": reply.text, "reasoning_content": None}
    choice = {"index": index, "message": message, **_ending(reply)}
    if generation.ask.meta_info:
        choice["meta_info"] = _meta_info(generation, reply)
    return choice


def _completion_choice(_: Generation, index: int, reply: Reply) -> Fields:
    return {"index": index, "text": reply.text, **_ending(reply)}


def _chat_delta(generation: Generation, index: int, delta: Fields, ending: Fields) -> Fields:
    choice = {"index": index, "delta": {"reasoning_content": None, **delta}, **ending}
    return {**_head(generation, "chat.completion.chunk"), "choices": [choice]}


_OPEN: Final[Fields] = {"logprobs": None, "finish_reason": None, "matched_stop": None}


def _chat_fresh(generation: Generation) -> Iterator[Fields]:
    for index, reply in enumerate(generation.replies):
        if reply.produced == reply.told:
            continue
        if not reply.told:
            yield _chat_delta(generation, index, {"role": "assistant", "content": ""}, _OPEN)
        yield _chat_delta(generation, index, {"content": reply.fresh}, _OPEN)
        reply.told = reply.produced


def _chat_closing(generation: Generation) -> list[Fields]:
    ends = [
        _chat_delta(generation, index, {}, _ending(reply))
        for index, reply in enumerate(generation.replies)
    ]
    return ends + _openai_closing(generation, "chat.completion.chunk")


def _completion_fresh(generation: Generation) -> Iterator[Fields]:
    for index, reply in enumerate(generation.replies):
        if not reply.news:
            continue
        choice = {"index": index, "text": reply.fresh, **_ending(reply)}
        yield {**_head(generation, "text_completion"), "choices": [choice], "usage": None}
        reply.told, reply.closed = reply.produced, reply.complete


def _completion_closing(generation: Generation) -> list[Fields]:
    return _openai_closing(generation, "text_completion")


def _openai_closing(generation: Generation, kind: str) -> list[Fields]:
    """What the client asked to be told at the end."""
    empty = {**_head(generation, kind), "choices": []}
    made = []
    details = _spec_details(generation)
    if details is not None:
        made.append({**empty, "usage": None, "sglext": details})
    if generation.ask.usage:
        made.append({**empty, "usage": _usage(generation)})
    return made


def _spec_details(generation: Generation) -> Fields | None:
    """How the drafts fared, where that was asked for and there were any."""
    if not generation.ask.spec_details:
        return None
    found = [
        {
            "spec_accept_rate": spec["spec_accept_rate"],
            "spec_accept_length": spec["spec_accept_length"],
            "spec_cap_length": 0.0,
            "spec_block_accept_length": 0.0,
            "spec_num_correct_drafts": spec["spec_num_correct_drafts"],
            "spec_num_proposed_drafts": spec["spec_num_proposed_drafts"],
            "spec_verify_ct": spec["spec_verify_ct"],
            "spec_correct_drafts_histogram": spec["spec_correct_drafts_histogram"],
            "spec_cap_lens_histogram": [],
        }
        for reply in generation.replies
        if (spec := _spec_meta(generation, reply))
    ]
    if not found:
        return None
    return {"spec_tokens_details": found if generation.ask.samples > 1 else found[0]}


def _weights(tokens: int) -> list[Fields]:
    return [{"version": _VERSION, "start": 0, "end": tokens}]


def _spec_meta(generation: Generation, reply: Reply) -> Fields:
    """SGLang's figures for one reply; none on the plain engine or before the first round."""
    rounds = sum(reply.rounds)
    if generation.draft is None or not rounds:
        return {}
    # Also under a tree SGLang takes all but one of the verified tokens for proposals.
    proposed = rounds * (generation.draft.draft_tokens - 1)
    accepted = sum(drafts * times for drafts, times in enumerate(reply.rounds))
    return {
        "spec_accept_rate": accepted / proposed,
        "spec_accept_length": reply.produced / rounds,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": rounds,
        "spec_correct_drafts_histogram": reply.rounds,
    }


def _reason(reply: Reply) -> Fields | None:
    match reply.finish_reason:
        case "length":
            return {"type": "length", "length": reply.produced}
        case "stop":
            return {"type": "stop", "matched": reply.matched_stop}
        case "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        case _:
            return None


def _meta_info(generation: Generation, reply: Reply) -> Fields:
    """What /generate tells about a reply; more of it once it is complete."""
    received = generation.received_at
    if reply.aborted and reply.admitted_at is None:
        reason: Fields = {"type": "abort", "message": "Abort in waiting queue"}
        return _unbegun(reply, reason, (reply.ended_at or received) - received)
    admitted = reply.admitted_at or received
    filled = reply.filled_at or admitted
    meta: Fields = {
        "id": reply.rid,
        "finish_reason": _reason(reply),
        "prompt_tokens": reply.wanted.prompt_tokens,
        "weight_version": _VERSION,
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": admitted,
        "prefill_finished_time": filled,
        "queue_time": admitted - received,
        "reasoning_tokens": 0,
        "completion_tokens": reply.produced,
        "cached_tokens": 0,
        "cached_tokens_details": {"device": 0, "host": 0},
        "dp_rank": None,
    }
    if reply.ended_at is not None:
        meta |= _final_meta(generation, reply, filled, reply.ended_at)
    if not reply.told or reply.complete:
        meta["response_sent_to_client_ts"] = reply.ended_at or filled
    return meta


def _final_meta(generation: Generation, reply: Reply, filled: float, ended: float) -> Fields:
    decoding = ended - filled
    return {
        "weight_versions": _weights(reply.produced),
        "e2e_latency": ended - generation.received_at,
        **_spec_meta(generation, reply),
        "request_received_ts": generation.received_at,
        "first_token_latency": filled - generation.received_at,
        "api_server_dispatch_finish_ts": generation.received_at,
        "request_finished_ts": ended,
        "decode_throughput": max(reply.produced - 1, 0) / decoding if decoding else 0.0,
    }


def _generated(generation: Generation, reply: Reply) -> Fields:
    return {
        "text": reply.text,
        "output_ids": reply.token_ids,
        "meta_info": _meta_info(generation, reply),
    }


def _generate_fresh(generation: Generation) -> Iterator[Fields]:
    for index, reply in enumerate(generation.replies):
        if not reply.news:
            continue
        made = _generated(generation, reply)
        yield made if generation.ask.single else {**made, "index": index}
        reply.told, reply.closed = reply.produced, reply.complete


def _generate_closing(_: Generation) -> list[Fields]:
    return []


_FRESH: Final[Mapping[Shape, Callable[[Generation], Iterator[Fields]]]] = {
    Shape.CHAT: _chat_fresh,
    Shape.COMPLETION: _completion_fresh,
    Shape.GENERATE: _generate_fresh,
}
_CLOSING: Final[Mapping[Shape, Callable[[Generation], list[Fields]]]] = {
    Shape.CHAT: _chat_closing,
    Shape.COMPLETION: _completion_closing,
    Shape.GENERATE: _generate_closing,
}
