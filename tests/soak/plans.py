"""What an engine of the soak is asked to do: written into the prompt, so that it passes any proxy.

The engine that gets a request does what the request says, and the client that sent it knows what
must come back. Neither has to be told by a third: an engine can be killed and started again at any
moment. A plan has one act for each engine, because a retry may go to the other.
"""

import re
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final

_MARK: Final = re.compile(
    rb"@soak ([!-~]+) ([a-z0-9_]+) ([a-z0-9_]+) (\d+) (\d+) (\d+) (\d+) ([01])@"
)


class Act(StrEnum):
    """How an engine answers."""

    OK = auto()
    CLOSE = auto()  # whole, and the connection is closed after it
    UNTIL_CLOSE = auto()  # whole, its end marked by closing
    EXTRA = auto()  # whole, and then bytes that nobody asked for
    PUMP = auto()  # a stream without an end, as fast as it is taken
    ERROR_EVENT = auto()  # a stream that tells of an error after its first tokens, and ends
    STATUS_400 = auto()
    STATUS_500 = auto()
    STATUS_429 = auto()
    STATUS_503 = auto()
    EVENT_503 = auto()  # SGLang's full queue: the first event of a stream that began with 200
    SILENT_HEAD = auto()  # takes the request and says nothing
    RESET_HEAD = auto()
    FIN_HEAD = auto()
    HALF_HEAD = auto()  # breaks off within the head
    GARBAGE_HEAD = auto()
    SILENT_MID = auto()  # falls silent within the body
    RESET_MID = auto()
    FIN_MID = auto()
    RAGGED_MID = auto()  # breaks off within an event
    GARBAGE_MID = auto()  # a chunk size that is none


MID: Final = frozenset(
    {Act.SILENT_MID, Act.RESET_MID, Act.FIN_MID, Act.RAGGED_MID, Act.GARBAGE_MID}
)
"""Answers with 200 that never end."""

IN_TUNNELS: Final = frozenset({Act.OK, Act.SILENT_MID, Act.RESET_MID, Act.FIN_MID})
"""What an engine does once it has agreed to a tunnel."""

REFUSALS: Final = frozenset({Act.STATUS_429, Act.STATUS_503, Act.EVENT_503})
"""What may be retried at the other engine."""

MAY_BE_SILENT: Final = frozenset({Act.RESET_HEAD, Act.FIN_HEAD, Act.RESET_MID})
"""Deaths before which no byte may come; a reset takes back what was written just before."""

STATUS: Final = {
    Act.STATUS_400: 400,
    Act.STATUS_500: 500,
    Act.STATUS_429: 429,
    Act.STATUS_503: 503,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What both engines do with one request. Pauses are in milliseconds, `pad` in bytes."""

    id: str
    spec: Act = Act.OK
    base: Act = Act.OK
    pieces: int = 4
    """Events of a stream."""
    before: int = 0
    """Pause before the head."""
    between: int = 0
    """Pause before each piece but the first."""
    pad: int = 0
    """What each piece has on top."""
    stream: bool = False

    def __str__(self) -> str:
        numbers = f"{self.pieces} {self.before} {self.between} {self.pad} {int(self.stream)}"
        return f"@soak {self.id} {self.spec} {self.base} {numbers}@"

    def act(self, name: str) -> Act:
        """What the engine `name` does."""
        return self.spec if name == "spec" else self.base


def plan_in(body: bytes) -> Plan | None:
    """The plan that a request's body holds, None where it has none."""
    found = _MARK.search(body)
    if found is None:
        return None
    name, spec, base, pieces, before, between, pad, stream = (g.decode() for g in found.groups())
    return Plan(
        id=name,
        spec=Act(spec),
        base=Act(base),
        pieces=int(pieces),
        before=int(before),
        between=int(between),
        pad=int(pad),
        stream=stream == "1",
    )
