"""What the simulated engines say: words that depend on the prompt and on nothing else.

Both engines give the same text for the same prompt, as two real ones do at temperature 0, so a
test can compare them. Sampling parameters do not change it. One word is one token.
"""

from typing import Final
from zlib import crc32

# fmt: off
_WORDS: Final = (
    "the", "model", "reads", "a", "prompt", "and", "then", "writes", "one", "word", "after",
    "another", "while", "many", "others", "wait", "in", "line", "each", "step", "takes", "time",
    "some", "guesses", "are", "right", "few", "are", "wrong", "so", "we", "count", "what", "was",
    "kept", "light", "load", "heavy", "batch", "short", "answer", "long", "context", "memory",
    "moves", "first", "token", "comes", "late", "next", "tokens", "follow", "fast", "draft",
    "verify", "accept", "again", "until", "done", "it", "runs", "on", "no", "machine",
)
# fmt: on

_FIRST_TOKEN_ID: Final = 1000
"""The token ids of the words start here, clear of the special tokens of real vocabularies."""

END_TOKEN_ID: Final = 2
"""What ends a reply that was not cut: the id that Llama tokenizers use."""

_BYTES_PER_TOKEN: Final = 4
"""English text under the tokenizers of current models; the product estimates prompts so too."""

_SHORTEST, _LONGEST = 16, 511
"""Tokens of a reply that is not cut; the mean, 263, is near the 211 of the Azure conversations."""


def seed_of(prompt: str | list[int]) -> int:
    """A number that stands for the prompt."""
    if isinstance(prompt, str):
        return crc32(prompt.encode("utf-8", "surrogatepass"))
    return crc32(",".join(map(str, prompt)).encode())


def sample_seed(seed: int, sample: int) -> int:
    """The number for one of several replies to one prompt; the first has that of the prompt."""
    return seed if sample == 0 else crc32(b"%d" % sample, seed)


def prompt_tokens(prompt: str | list[int]) -> int:
    """About how many tokens a prompt has; exactly where it is given as tokens."""
    if isinstance(prompt, str):
        return max(1, len(prompt.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)
    return max(1, len(prompt))


def natural_length(seed: int) -> int:
    """After how many tokens the reply ends by itself."""
    return _SHORTEST + crc32(b"end", seed) % (_LONGEST - _SHORTEST + 1)


def _word(seed: int, position: int) -> int:
    return crc32(position.to_bytes(4, "little"), seed) % len(_WORDS)


def text(seed: int, start: int, stop: int) -> str:
    """The words at positions `start` to `stop`, each with the space before it."""
    return "".join(f" {_WORDS[_word(seed, position)]}" for position in range(start, stop))


def token_ids(seed: int, stop: int) -> list[int]:
    """The ids of the tokens before position `stop`."""
    return [_FIRST_TOKEN_ID + _word(seed, position) for position in range(stop)]
