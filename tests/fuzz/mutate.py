"""A seeded mutator of scripts: the same seed makes the same inputs, on every machine.

It is what runs where no coverage-guided fuzzer is installed, and what the guided one is given as
its own mutator beside libFuzzer's.
"""

from collections.abc import Callable
from random import Random

from tests.fuzz.corpus import Script, Then, answers, clients, compose, parse, tokens, tunnels

Edit = Callable[[bytes, Random], bytes]

TOKENS = tokens()
CLIENTS = clients()
ANSWERS = answers()
TUNNELS = tunnels()
HEAD = 120
"""Bytes of a request or an answer that are mostly head."""
LONGEST = 12_000
"""Bytes of a part; the limits in the conversation are all below a third of it."""


def _place(data: bytes, lots: Random) -> int:
    """Somewhere in `data`: often in its head, mostly beside something that HTTP reads."""
    end = min(len(data), HEAD) if lots.random() < 0.4 else len(data)
    if data and lots.random() < 0.5:
        wanted = lots.choice((b"\r\n", b":", b" ", b"\n", b"\r\n\r\n"))
        found = data.find(wanted, lots.randrange(end))
        if found >= 0:
            return found + lots.randint(0, len(wanted))
    return lots.randint(0, end)


def _span(data: bytes, lots: Random) -> tuple[int, int]:
    start = _place(data, lots)
    return start, min(len(data), start + lots.choice((1, 1, 2, 4, 17, lots.randint(1, 400))))


def _put_token(data: bytes, lots: Random) -> bytes:
    at = _place(data, lots)
    return data[:at] + lots.choice(TOKENS) + data[at:]


def _overwrite(data: bytes, lots: Random) -> bytes:
    at, token = _place(data, lots), lots.choice(TOKENS)
    return data[:at] + token + data[at + len(token) :]


def _cut_out(data: bytes, lots: Random) -> bytes:
    start, end = _span(data, lots)
    return data[:start] + data[end:]


def _double(data: bytes, lots: Random) -> bytes:
    start, end = _span(data, lots)
    return data[:end] + data[start:end] * lots.choice((1, 1, 1, 2, 40)) + data[end:]


def _move(data: bytes, lots: Random) -> bytes:
    start, end = _span(data, lots)
    rest = data[:start] + data[end:]
    at = _place(rest, lots)
    return rest[:at] + data[start:end] + rest[at:]


def _flip(data: bytes, lots: Random) -> bytes:
    if not data:
        return data
    at = lots.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << lots.randrange(8))]) + data[at + 1 :]


def _put_byte(data: bytes, lots: Random) -> bytes:
    at = _place(data, lots)
    return data[:at] + bytes([lots.randrange(256)]) + data[at:]


def _change_digit(data: bytes, lots: Random) -> bytes:
    digits = [at for at, byte in enumerate(data[:2000]) if 48 <= byte < 58]
    if not digits:
        return data
    at = lots.choice(digits)
    return data[:at] + lots.choice((b"0", b"1", b"9", b"-1", b"00", b"f", b"")) + data[at + 1 :]


def _change_case(data: bytes, lots: Random) -> bytes:
    start, end = _span(data, lots)
    return data[:start] + data[start:end].swapcase() + data[end:]


def _cut_off(data: bytes, lots: Random) -> bytes:
    return data[: _place(data, lots)]


def _bare_line_end(data: bytes, lots: Random) -> bytes:
    at = data.find(b"\r\n", lots.randint(0, len(data)))
    return data if at < 0 else data[:at] + lots.choice((b"\n", b"\r", b"\r\r\n")) + data[at + 2 :]


EDITS: tuple[Edit, ...] = (
    _put_token,
    _put_token,
    _overwrite,
    _cut_out,
    _double,
    _move,
    _flip,
    _put_byte,
    _change_digit,
    _change_case,
    _cut_off,
    _bare_line_end,
)


def edit(data: bytes, lots: Random, most: int = 4) -> bytes:
    """Change `data` in a few ways."""
    for _ in range(lots.randint(1, most)):
        data = lots.choice(EDITS)(data, lots)
    return data[:LONGEST]


def seed_line(lots: Random) -> bytes:
    """A seed, sometimes of a conversation that is only cut, or in which nothing befalls."""
    kind = lots.choice((b"calm", b"cut", b"s", b"s", b"s", b"s"))
    return kind + b"%d" % lots.randrange(1 << 24)


def fresh(lots: Random, *, client: bool, engine: bool) -> bytes:
    """A script from the corpus, with the chosen sides mutated."""
    asks = lots.choice(CLIENTS)
    if lots.random() < 0.3:
        asks += lots.choice(CLIENTS)
    said = [lots.choice(ANSWERS) for _ in range(lots.choice((0, 1, 1, 2, 4)) or engine)]
    if lots.random() < 0.1:
        asks, *said = lots.choice(TUNNELS)
    if client:
        asks = edit(asks, lots)
    if engine:
        said = [(edit(answer, lots), _then(then, lots)) for answer, then in said]
    return compose(seed_line(lots), asks, *said)


def _then(then: Then, lots: Random) -> Then:
    return lots.choice(list(Then)) if lots.random() < 0.3 else then


def remake(data: bytes, lots: Random) -> bytes:
    """Change a script that there is: one of its parts, its seed, or how it ends."""
    script: Script = parse(data)
    seed, asks, said = script.seed[:40], script.client, list(script.answers)
    which = lots.randrange(4)
    if which == 0:
        seed = seed_line(lots)
    if which == 1 or not said:
        asks = edit(asks, lots)
    else:
        at = lots.randrange(len(said))
        said[at] = (edit(said[at][0], lots), _then(said[at][1], lots))
    if lots.random() < 0.1:
        said.insert(lots.randint(0, len(said)), lots.choice(ANSWERS))
    return compose(seed, asks, *said)
