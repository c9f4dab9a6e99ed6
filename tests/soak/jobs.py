"""What the clients of the soak do: a list of jobs that a seed makes, the same one each time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import count
from random import Random
from typing import Final

from tests.soak.answers import STREAMS
from tests.soak.plans import Act, Plan


class Way(StrEnum):
    """How a client behaves."""

    STAY = auto()
    PIPELINE = auto()  # sends the next request with this one
    SLOW = auto()  # reads a large answer with pauses
    STUCK = auto()  # reads nothing of it, until it is cut
    LEAVE_HEAD = auto()  # within the head
    LEAVE_BODY = auto()  # within the body
    LEAVE_SOON = auto()  # some time after the whole request: in the room, or before the head
    LEAVE_MID = auto()  # after the first part of the answer's body
    LEAVE_LAST = auto()  # after its last byte
    OWN = auto()  # asks what specswitch answers itself
    UNKNOWN = auto()  # a path that is not served
    METHOD = auto()  # a method that the path does not have
    TOO_LARGE = auto()
    MALFORMED = auto()  # not HTTP that is accepted
    LONG_HEAD = auto()
    TUNNEL = auto()  # a WebSocket, whose engine says everything again


class Leave(StrEnum):
    """How a client goes."""

    FIN = auto()
    RESET = auto()
    HALF = auto()  # FIN, and goes on reading


class Framing(StrEnum):
    """How a client marks the end of its body."""

    LENGTH = auto()
    CHUNKED = auto()
    EXPECT = auto()  # waits to be asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request and the way its client behaves."""

    id: str
    way: Way
    path: str
    plan: Plan
    leave: Leave = Leave.FIN
    framing: Framing = Framing.LENGTH
    keeps_alive: bool = True
    patience: int = 0
    """Milliseconds until it leaves, LEAVE_SOON only."""
    extra: tuple[tuple[str, object], ...] = ()
    """More fields of the body: what decides where it may go."""

    def body(self) -> bytes:
        """The request's body."""
        text = str(self.plan)
        prompt: dict[str, object] = {"prompt": text}
        if "chat" in self.path or self.path in {"/v1/messages", "/invocations"}:
            prompt = {"messages": [{"role": "user", "content": text}]}
        elif self.path in {"/v1/responses", "/v1/embeddings"}:
            prompt = {"input": text}
        elif self.path == "/generate":
            prompt = {"text": text}
        fields = {"model": "tiny", "max_tokens": 16, "stream": self.plan.stream}
        return json.dumps({**fields, **prompt, **dict(self.extra)}).encode()


_WAYS: Final = {
    Way.STAY: 520,
    Way.PIPELINE: 60,
    Way.SLOW: 6,
    Way.STUCK: 3,
    Way.LEAVE_HEAD: 25,
    Way.LEAVE_BODY: 35,
    Way.LEAVE_SOON: 120,
    Way.LEAVE_MID: 100,
    Way.LEAVE_LAST: 40,
    Way.OWN: 15,
    Way.UNKNOWN: 12,
    Way.METHOD: 12,
    Way.TOO_LARGE: 12,
    Way.MALFORMED: 20,
    Way.LONG_HEAD: 10,
    Way.TUNNEL: 25,
}
"""Shares, in thousandths or so."""

_ACTS: Final = {
    Act.OK: 700,
    Act.CLOSE: 40,
    Act.UNTIL_CLOSE: 30,
    Act.EXTRA: 20,
    Act.ERROR_EVENT: 15,
    Act.STATUS_400: 20,
    Act.STATUS_500: 15,
    Act.STATUS_429: 20,
    Act.STATUS_503: 20,
    Act.EVENT_503: 20,
    Act.SILENT_HEAD: 4,
    Act.RESET_HEAD: 14,
    Act.FIN_HEAD: 14,
    Act.HALF_HEAD: 12,
    Act.GARBAGE_HEAD: 8,
    Act.SILENT_MID: 4,
    Act.RESET_MID: 14,
    Act.FIN_MID: 14,
    Act.RAGGED_MID: 14,
    Act.GARBAGE_MID: 8,
}
_TUNNEL_ACTS: Final = {
    Act.OK: 70,
    Act.STATUS_400: 5,
    Act.RESET_HEAD: 5,
    Act.FIN_HEAD: 5,
    Act.SILENT_MID: 5,
    Act.RESET_MID: 10,
    Act.FIN_MID: 10,
}
TUNNEL_PATH: Final = "/v1/realtime"
MODEL_PATHS: Final = ("/v1/embeddings", "/tokenize")
SLOW_MS: Final = 150
"""Later than an engine may die for its request to be sent again (100 ms)."""

LARGE_PIECES, LARGE_PAD = 32, 256 * 1024
"""An answer of 8 MiB: more than the kernel holds for a client that does not read."""


def jobs(seed: int) -> Iterator[Job]:
    """The jobs of `seed`, without an end."""
    lots = Random(seed)
    for number in count():
        (way,) = lots.choices(list(_WAYS), list(_WAYS.values()))
        yield _job(lots, f"s{seed}-{number}", way)


def _job(lots: Random, name: str, way: Way) -> Job:
    if way is Way.TUNNEL:
        return _tunnel(lots, name)
    large = way in {Way.SLOW, Way.STUCK}
    model = not large and lots.randrange(12) == 0
    path = lots.choice(MODEL_PATHS if model else tuple(STREAMS))
    plan = _large(lots, name) if large else _plan(lots, name)
    extra: list[tuple[str, object]] = []
    if lots.randrange(10) == 0:
        extra.append(("min_p", 0.1))  # only base may serve it
    if lots.randrange(10) == 0 and "chat" in path:
        extra.append(("n", lots.randint(2, 4)))
    return Job(
        id=name,
        way=way,
        path=path,
        plan=plan,
        leave=lots.choice(tuple(Leave)),
        framing=lots.choices(tuple(Framing), (8, 2, 1))[0],
        keeps_alive=lots.randrange(5) > 0,
        patience=lots.choice((0, 0, 1, 5, 20, 60)),
        extra=tuple(extra),
    )


def _tunnel(lots: Random, name: str) -> Job:
    acts, shares = list(_TUNNEL_ACTS), list(_TUNNEL_ACTS.values())
    spec, base = lots.choices(acts, shares, k=2)
    pad = lots.choice((0, 10, 3000, 200_000))
    plan = Plan(id=name, spec=spec, base=base, pieces=lots.randint(1, 6), pad=pad)
    leave = lots.choice(tuple(Leave))
    return Job(id=name, way=Way.TUNNEL, path=TUNNEL_PATH, plan=plan, leave=leave)


def _plan(lots: Random, name: str) -> Plan:
    acts, shares = list(_ACTS), list(_ACTS.values())
    spec, base = lots.choices(acts, shares, k=2)
    return Plan(
        id=name,
        spec=spec,
        base=base,
        pieces=lots.randint(1, 8),
        before=lots.choice((0, 0, 0, 5, 20, 80, SLOW_MS)),
        between=lots.choice((0, 0, 2, 10)),
        pad=lots.choice((0, 0, 0, 10, 3000)),
        stream=lots.randrange(10) < 7,
    )


def _large(lots: Random, name: str) -> Plan:
    """A large answer; not all of them have an end."""
    act = lots.choice((Act.OK, Act.OK, Act.RESET_MID))
    return Plan(id=name, spec=act, base=act, pieces=LARGE_PIECES, pad=LARGE_PAD, stream=True)
