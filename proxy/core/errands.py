"""Requests whose answer is ours and needs somebody to be asked first: an errand, and who runs it.

The data plane hands an errand to a desk and is told of its end; the desk is the control plane's
(`control/desk`). Neither knows the other: this is what they agree on, and `app` brings them
together.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from proxy.errors import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a client wants to know of the pair, or done by both of its servers."""

    template: str
    """The path, as the allow-list has it."""
    method: str
    """HEAD is GET here; the data plane leaves the body out."""
    query: bytes
    """What stood behind the `?`, as it came."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Those that say what the body is, and an order's id; names in lower case."""
    body: bytes = field(default=b"", repr=False)
    key: bytes | None = field(default=None, repr=False)
    """The client's key where it is the engines' to judge, None where it is not passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer of ours."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    refusal: Refusal | None = None
    """The error of ours that this answer tells, with more in its body than the error's shape has.

    None where the answer is none of our errors.
    """


Result: TypeAlias = Reply | Refusal
"""How an errand ends: with an answer, or with an error that has no more to say than its words."""


class Asker(Protocol):
    """Who waits for the end of an errand."""

    def errand_over(self, result: Result) -> None:
        """It has ended; told once, later than `start`, and never after `cancel`."""


class Visit(Protocol):
    """One asker's share in an errand that runs."""

    def cancel(self) -> None:
        """Nobody waits for it any more; may be called at any time, also after its end."""


class Desk(Protocol):
    """Who runs errands."""

    def start(self, errand: Errand, asker: Asker) -> Visit:
        """Run `errand`, and tell `asker` how it ended. It ends by itself, within its own time."""
