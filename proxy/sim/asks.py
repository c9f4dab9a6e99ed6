"""What a client asks of an engine: a request body read into the sequences that it wants.

Bodies are read leniently, as SGLang's pydantic models are ("0.5" is a number), and what is not
known is ignored: the simulation answers as if sampling parameters did nothing. A body that SGLang
would refuse is refused in its shape of error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeVar
from uuid import uuid4

import msgspec

from proxy.errors import SpecswitchError
from proxy.sim.text import natural_length, prompt_tokens, sample_seed, seed_of

DEFAULT_OUTPUT_TOKENS: Final = 64
"""Output where a request sets no limit. SGLang's chat has none and its /generate 128; a simulation
that is asked casually should come to an end."""

_MOST_SAMPLES: Final = 128
"""OpenAI's own bound on `n`."""


class Shape(StrEnum):
    """Which family of body and reply a path speaks."""

    CHAT = "chat"
    COMPLETION = "completion"
    GENERATE = "generate"


class BodyError(SpecswitchError):
    """A body that the engine answers with an error; carries that answer."""

    def __init__(self, payload: object, *, in_stream: bool = False) -> None:
        super().__init__(str(payload))
        self.payload = payload
        self.in_stream = in_stream
        """Whether it is an event of a stream with status 200; otherwise the status is 400."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One reply to one prompt."""

    seed: int
    prompt_tokens: int
    output_tokens: int
    cut: bool
    """Whether the limit ends it; otherwise it ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for generation."""

    shape: Shape
    rids: tuple[str, ...]
    """One for each of `wanted`; OpenAI's shapes show the first only."""
    model: str = ""
    wanted: tuple[Wanted, ...]
    """Prompt by prompt, and within a prompt sample by sample."""
    samples: int
    """Replies to each prompt."""
    single: bool = False
    """Whether /generate answers with one object and not with a list."""
    stream: bool
    usage: bool = False
    """Whether a stream ends with a usage event."""
    spec_details: bool = False
    meta_info: bool = False


_Count = Annotated[int, msgspec.Meta(ge=1)]
_Samples = Annotated[int, msgspec.Meta(ge=1, le=_MOST_SAMPLES)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        """What it says, images aside."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class _OpenAi(msgspec.Struct, kw_only=True):
    model: str = "default"
    rid: str | None = None
    n: _Samples | None = None
    stream: bool | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None  # only so that a wrong type is an error
    stream_options: _StreamOptions | None = None
    return_spec_tokens_details: bool | None = None
    return_meta_info: bool | None = None


class _Chat(_OpenAi, kw_only=True):
    messages: list[_Message]


class _Completion(_OpenAi, kw_only=True):
    prompt: str | list[str | int | list[int]]


class _Sampling(msgspec.Struct):
    max_new_tokens: _Count | None = None
    n: _Samples | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None  # only so that a wrong type is an error


class _Generate(msgspec.Struct, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None


class Abort(msgspec.Struct):
    """What is to be ended before its time."""

    rid: str | None = None
    """The id of a request; nothing is meant by none, and by one that is empty."""
    abort_all: bool = False


# SGLang is lax: pydantic takes "0.5" for a number and 1 for true.
_CHAT: Final = msgspec.json.Decoder(_Chat, strict=False)
_COMPLETION: Final = msgspec.json.Decoder(_Completion, strict=False)
_GENERATE: Final = msgspec.json.Decoder(_Generate, strict=False)
_ABORT: Final = msgspec.json.Decoder(Abort, strict=False)
_T = TypeVar("_T")


def read(shape: Shape, body: bytes, *, context_length: int) -> Ask:
    """The sequences that a body asks for.

    Raises:
        BodyError: SGLang answers such a body with an error.
    """
    match shape:
        case Shape.CHAT:
            return _read_chat(_decoded(_CHAT, body), context_length)
        case Shape.COMPLETION:
            return _read_completion(_decoded(_COMPLETION, body), context_length)
        case Shape.GENERATE:
            return _read_generate(_decoded(_GENERATE, body), context_length)


def read_abort(body: bytes) -> Abort:
    """What a body of `/abort_request` asks for.

    Raises:
        BodyError: SGLang answers such a body with an error.
    """
    return _decoded(_ABORT, body)


def _decoded(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BodyError(_wrong_field(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        broken = validation_error("json_invalid", ("body", 0), "JSON decode error")
        raise BodyError(broken) from error


def openai_error(message: str, kind: str, code: int) -> dict[str, object]:
    """The flat error of SGLang's OpenAI routes."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def validation_error(kind: str, where: tuple[str | int, ...], message: str) -> dict[str, object]:
    """The same, with pydantic's finding in it; SGLang adds the path of a source file."""
    finding = {"type": kind, "loc": where, "msg": message}
    return openai_error(f"1 validation error:\n  {finding}", "Bad Request", 400)


def _wrong_field(found: str) -> dict[str, object]:
    """From what msgspec says, `Expected ... - at `$.n``, to what pydantic says."""
    if "missing required field" in found:
        return validation_error("missing", ("body", found.split("`")[1]), "Field required")
    message, _, path = found.partition(" - at ")
    fields = path.strip("`").removeprefix("$").lstrip(".")
    return validation_error("type_error", ("body", fields), message)


def _read_chat(body: _Chat, context_length: int) -> Ask:
    prompt = "\n".join(f"{message.role}: {message.text}" for message in body.messages)
    return _read_openai(Shape.CHAT, body, [prompt] if prompt else [], context_length)


def _read_completion(body: _Completion, context_length: int) -> Ask:
    prompts = [body.prompt] if isinstance(body.prompt, str) else _split(body.prompt)
    return _read_openai(Shape.COMPLETION, body, prompts, context_length)


def _split(listed: Sequence[str | int | list[int]]) -> Sequence[str | list[int]]:
    """A list of numbers is one prompt in tokens; any other list holds several prompts."""
    tokens = [one for one in listed if isinstance(one, int)]
    return [tokens] if tokens else [one for one in listed if not isinstance(one, int)]


def _read_openai(
    shape: Shape, body: _OpenAi, prompts: Sequence[str | list[int]], context_length: int
) -> Ask:
    if not prompts:
        raise BodyError(openai_error("The prompt cannot be empty.", "BadRequestError", 400))
    limit = body.max_completion_tokens or body.max_tokens or DEFAULT_OUTPUT_TOKENS
    samples = body.n or 1
    wanted: list[Wanted] = []
    for prompt in prompts:
        if problem := _too_long(prompt, limit, context_length):
            raise BodyError(openai_error(problem, "BadRequestError", 400))
        wanted += _samples(prompt, samples, limit, endless=bool(body.ignore_eos))
    return Ask(
        shape=shape,
        rids=(body.rid or uuid4().hex,) * len(wanted),
        model=body.model,
        wanted=tuple(wanted),
        samples=samples,
        stream=bool(body.stream),
        usage=bool(body.stream_options and body.stream_options.include_usage),
        spec_details=bool(body.return_spec_tokens_details),
        meta_info=bool(body.return_meta_info),
    )


def _read_generate(body: _Generate, context_length: int) -> Ask:
    given = body.text if body.input_ids is None else body.input_ids
    if not given:
        raise BodyError({"error": "Either text or input_ids should be provided."})
    prompts = [given] if isinstance(given, str) else _split(given)
    params = body.sampling_params or _Sampling()
    each = params if isinstance(params, list) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise _generate_error("There must be one sampling_params for each prompt.", body)
    samples = each[0].n or 1
    wanted: list[Wanted] = []
    for prompt, own in zip(prompts, each, strict=True):
        limit = own.max_new_tokens or DEFAULT_OUTPUT_TOKENS
        if problem := _too_long(prompt, limit, context_length):
            raise _generate_error(problem, body)
        wanted += _samples(prompt, samples, limit, endless=bool(own.ignore_eos))
    flat = isinstance(given, str) or isinstance(given[0], int)
    return Ask(
        shape=Shape.GENERATE,
        rids=_rids(body.rid, len(wanted)),
        wanted=tuple(wanted),
        samples=samples,
        single=flat and samples == 1,
        stream=bool(body.stream),
    )


def _generate_error(message: str, body: _Generate) -> BodyError:
    """How /generate says that it cannot: its head has gone out before it looks."""
    if not body.stream:
        return BodyError({"error": {"message": message}})
    kind = {"type": "invalid_request_error", "code": 400, "retryable": False}
    return BodyError({"error": {"message": message, **kind}}, in_stream=True)


def _rids(given: str | list[str] | None, wanted: int) -> tuple[str, ...]:
    """One id for each reply: those that were given, where there are enough of them."""
    listed = [given] if isinstance(given, str) else given or []
    return tuple(listed) if len(listed) == wanted else tuple(uuid4().hex for _ in range(wanted))


def _too_long(prompt: str | list[int], limit: int, context_length: int) -> str | None:
    """Why it does not fit the context, in SGLang's words; None if it does."""
    tokens = prompt_tokens(prompt)
    if tokens > context_length:
        return (
            f"The input ({tokens} tokens) is longer than the model's context length "
            f"({context_length} tokens)."
        )
    if tokens + limit > context_length:
        return (
            f"Requested token count exceeds the model's maximum context length of "
            f"{context_length} tokens. You requested a total of {tokens + limit} tokens: {tokens} "
            f"tokens from the input messages and {limit} tokens for the completion. Please reduce "
            f"the number of tokens in the input messages or the completion to fit within the limit."
        )
    return None


def _samples(prompt: str | list[int], samples: int, limit: int, *, endless: bool) -> list[Wanted]:
    """The replies to one prompt; `endless` ones go on to the limit (ignore_eos)."""
    tokens, first = prompt_tokens(prompt), seed_of(prompt)
    wanted = []
    for sample in range(samples):
        seed = sample_seed(first, sample)
        length = limit if endless else min(limit, natural_length(seed))
        wanted.append(Wanted(seed, tokens, length, cut=endless or length < natural_length(seed)))
    return wanted
