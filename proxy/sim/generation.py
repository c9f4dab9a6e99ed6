"""One request in the making: what has happened to each of its replies so far.

It keeps counts and times, in seconds of the wall clock, and knows no HTTP, no shape and no GPU.
"""

from dataclasses import dataclass, field
from typing import Final

from proxy.sim.asks import Ask, Wanted
from proxy.sim.engine import Admitted, Emitted, Happening, Refused
from proxy.sim.physics import Profile
from proxy.sim.text import END_TOKEN_ID, text, token_ids

QUEUE_FULL: Final = "The request queue is full."
"""SGLang's words."""


@dataclass(slots=True)
class Reply:
    """One sequence of the request."""

    wanted: Wanted
    rid: str
    rounds: list[int]
    """How many verify rounds accepted 0, 1, ... drafts."""
    produced: int = 0
    told: int = 0
    """Tokens that the client has been sent."""
    refused: bool = False
    aborted: bool = False
    """Whether somebody has ended it before its time."""
    closed: bool = False
    """Whether the client has been sent its end, where an event of its own tells that."""
    admitted_at: float | None = None
    filled_at: float | None = None
    ended_at: float | None = None

    @property
    def text(self) -> str:
        """All of it so far."""
        return text(self.wanted.seed, 0, self.produced)

    @property
    def fresh(self) -> str:
        """What the client has not been sent yet."""
        return text(self.wanted.seed, self.told, self.produced)

    @property
    def token_ids(self) -> list[int]:
        """All of it so far, as tokens."""
        return token_ids(self.wanted.seed, self.produced)

    @property
    def complete(self) -> bool:
        """Whether its last token is there."""
        return self.aborted or self.produced == self.wanted.output_tokens

    @property
    def news(self) -> bool:
        """Whether there is something that the client has not been sent: tokens, or their end."""
        return self.produced > self.told or (self.aborted and not self.closed)

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word; None until it is complete."""
        if not self.complete:
            return None
        if self.aborted:
            return "abort"
        return "length" if self.wanted.cut else "stop"

    @property
    def matched_stop(self) -> int | None:
        """The token that ended it, where one did."""
        return END_TOKEN_ID if self.finish_reason == "stop" else None


@dataclass(slots=True)
class Generation:
    """A request and its replies."""

    ask: Ask
    draft: Profile | None
    """How it is speculated on; None on the plain engine."""
    received_at: float
    replies: list[Reply] = field(init=False)
    closed: bool = False
    """Whether the client has been sent the end."""

    def __post_init__(self) -> None:
        steps = 0 if self.draft is None else self.draft.draft_steps
        self.replies = [
            Reply(wanted, rid, [0] * (steps + 1))
            for wanted, rid in zip(self.ask.wanted, self.ask.rids, strict=True)
        ]

    @property
    def refused(self) -> bool:
        """Whether the queue was full for one of its sequences, which fails them all."""
        return any(reply.refused for reply in self.replies)

    @property
    def complete(self) -> bool:
        """Whether all its tokens are there."""
        return all(reply.complete for reply in self.replies)

    @property
    def started(self) -> bool:
        """Whether the first token is there."""
        return any(reply.produced for reply in self.replies)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once however many replies it gets."""
        return sum(reply.wanted.prompt_tokens for reply in self.replies[:: self.ask.samples])

    @property
    def completion_tokens(self) -> int:
        """So far."""
        return sum(reply.produced for reply in self.replies)

    def note(self, index: int, happening: Happening, at: float) -> None:
        """Something happened to the reply at `index`."""
        reply = self.replies[index]
        match happening:
            case Admitted():
                reply.admitted_at = at
            case Refused():
                reply.refused = True
            case Emitted(tokens=tokens, accepted=accepted, last=last):
                reply.produced += tokens
                reply.filled_at = reply.filled_at or at
                if accepted is not None:
                    reply.rounds[accepted] += 1
                if last:
                    reply.ended_at = at
