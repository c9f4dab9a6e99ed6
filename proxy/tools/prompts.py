"""Prompts to measure with: those of a file, or the ones that are built in.

A line of a file is an object with `messages` (as chat takes them) or `prompt` (a text), and
optionally `max_tokens`, the tokens that such a request is answered with in real life. The built-in
ones were written for this repository: chat, code, summaries, translations and lists, of 15 to 1,700
tokens; a part of them shares a system prompt, as the requests of one application do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from proxy.errors import SpecswitchError

_BYTES_PER_TOKEN: Final = 4
"""English under the tokenizers of current models; only how long to make a prompt hangs on it."""

_MOST_BYTES: Final = 64 * 1024 * 1024
"""A file beyond that is not a list of prompts to measure with."""

_LAST_NAMED: Final = 5
"""Bad lines that an error names one by one; the rest is counted."""

Message: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, and where it is from."""

    messages: tuple[Message, ...]
    output_tokens: int | None = None
    """How long its answer is in real life; None where nobody said."""
    source: str = "built in"
    """The file and line, for a finding."""
    kind: str = ""

    @property
    def text_bytes(self) -> int:
        """Of its texts; what is no text counts nothing."""
        return sum(len(text.encode()) for text in map(_text, self.messages))

    @property
    def tokens(self) -> int:
        """About how many it has."""
        return max(1, self.text_bytes // _BYTES_PER_TOKEN)


class _Line(msgspec.Struct):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] | None = None
    prompt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    kind: str = ""


_DECODER: Final = msgspec.json.Decoder(_Line)


def builtin() -> tuple[Prompt, ...]:
    """The prompts that come with specswitch."""
    content = files("proxy.tools").joinpath("prompts.jsonl").read_bytes()
    return parse(content, "built in")


def read(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of JSON lines; empty lines are left out.

    Raises:
        SpecswitchError: it cannot be read, holds no prompt, or a line is bad; names each by number.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SpecswitchError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise SpecswitchError(f"{path} has more than 64 MiB")
    return parse(content, str(path))


def parse(content: bytes, name: str) -> tuple[Prompt, ...]:
    """The prompts of `content`, which is called `name`; raises SpecswitchError as `read` does."""
    found, bad = [], []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(_prompt(line, f"{name}, line {number}"))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            bad.append(f"{name}, line {number}: {error}")
    if bad:
        more = len(bad) - _LAST_NAMED
        listed = [*bad[:_LAST_NAMED], *([f"and {more} more bad lines"] if more > 0 else [])]
        raise SpecswitchError("\n".join(listed))
    if not found:
        raise SpecswitchError(f"{name} holds no prompt")
    return tuple(found)


def stretched(prompt: Prompt, tokens: int, padding: Sequence[Prompt], mark: str) -> Prompt:
    """A prompt of about `tokens`: `prompt`, with the texts of `padding` as reading matter before.

    `mark` begins it, so that two of them share no prefix and no cache answers for the server.
    """
    want = max(0, tokens - prompt.tokens) * _BYTES_PER_TOKEN
    head = f"Notes {mark}, for reference only.\n\n"
    pieces, length, turn = [head], len(head), 0
    texts = [text for one in padding for text in map(_text, one.messages) if text] or [head]
    while length < want:
        piece = texts[turn % len(texts)][: want - length] + "\n\n"
        pieces.append(piece)
        length += len(piece.encode())
        turn += 1
    first, *rest = prompt.messages
    longer = {**first, "content": "".join(pieces) + _text(first)}
    return replace(prompt, messages=(longer, *rest), source=f"{prompt.source}, made longer")


def _prompt(line: bytes, source: str) -> Prompt:
    read_line = _DECODER.decode(line)
    if (read_line.messages is None) is (read_line.prompt is None):
        raise ValueError("needs either `messages` or `prompt`")
    messages = read_line.messages
    if messages is None:
        messages = [{"role": "user", "content": read_line.prompt}]
    if not all(isinstance(message.get("role"), str) for message in messages):
        raise ValueError("each of `messages` needs a `role`")
    prompt = Prompt(tuple(messages), read_line.max_tokens, source, read_line.kind)
    if prompt.text_bytes == 0:
        raise ValueError("has no text")
    return prompt


def _text(message: Message) -> str:
    """What a message says; parts that are no text are left out."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
