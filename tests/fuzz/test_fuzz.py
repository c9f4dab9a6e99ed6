"""A short fuzz of both protocols, what longer runs have found, and what the fuzz reaches.

`make fuzz` is the long form. A finding becomes a script in `regressions`, named for its target.
"""

from collections import Counter
from pathlib import Path

import pytest

from proxy.core.words import Outcome, RetryCause
from tests.fuzz import corpus
from tests.fuzz.corpus import REGRESSIONS, Then, compose, parse
from tests.fuzz.mutate import TOKENS, fresh
from tests.fuzz.plan import Violation, require
from tests.fuzz.run import SIDES, Tally, fuzz, kind_of
from tests.fuzz.targets import TARGETS, read_all, the_loop
from tests.fuzz.verdicts import judge
from tests.fuzz.world import play

FOUND = sorted(REGRESSIONS.glob("*-*"))
INPUTS = {"reader": 2500, "client": 600, "engine": 500, "both": 500}
"""About five seconds of an idle core, all together."""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_was_found_stays_mended(path: Path) -> None:
    """A script that once broke something breaks nothing."""
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_a_short_fuzz_finds_nothing(side: str) -> None:
    """So many mutated scripts, the same on every machine, and nothing that must hold is broken."""
    tally = fuzz(side, 1, Tally(), inputs=INPUTS[side])

    assert tally.findings == {}
    assert tally.executions == INPUTS[side]


def test_every_request_of_the_corpus_is_read() -> None:
    """What the mutations start from is accepted, so that they start from inside."""
    for client in corpus.clients():
        items, reader = read_all([client])

        assert items
        assert not reader.dead or b"a" * 2500 in client
        assert reader.ahead == 0


def test_conversations_reach_every_ending() -> None:
    """Of the corpus, unmutated, requests end in all four ways, and both retries are made."""
    outcomes: Counter[Outcome] = Counter()
    retries: Counter[RetryCause] = Counter()
    clients, answers = corpus.clients(), corpus.answers()
    for number in range(240):
        said = [answers[(number * 7 + k) % len(answers)] for k in range(3)]
        script = compose(b"s%d" % number, clients[number % len(clients)], *said)
        world = play(the_loop(), parse(script))
        judge(world)
        outcomes.update(record.outcome for record in world.told.records)
        retries.update(world.told.retries)

    assert set(outcomes) == set(Outcome)
    assert set(retries) == set(RetryCause)


def test_a_calm_conversation_is_answered_request_by_request() -> None:
    """With nothing befalling it a pipeline gets its answers, all of them whole."""
    client = next(each for each in corpus.clients() if each.count(b"POST /generate") == 5)

    world = play(the_loop(), parse(compose(b"calm", client, (corpus.OK, Then.KEEP))))

    assert world.end.taken.count(b"HTTP/1.1 200 OK") == 5
    assert [record.outcome for record in world.told.records] == [Outcome.OK] * 5
    assert len(world.sent) == 5


def test_what_is_agreed_to_is_tunnelled() -> None:
    """Of the corpus' tunnels all open, and where nothing befalls them bytes go both ways."""
    for number, (asks, said) in enumerate(corpus.tunnels()):
        world = play(the_loop(), parse(compose(b"calm%d" % number, asks, said)))
        judge(world)
        (record,) = world.told.records
        (engine,) = world.engines

        assert record.status == 101
        assert engine.tunnel_at is not None
        assert asks.endswith(engine.end.taken[engine.tunnel_at :])
        assert said[0].endswith(world.end.taken[world.end.taken.rindex(b"\r\n\r\n") + 4 :])


def test_a_script_is_read_as_it_was_written() -> None:
    """The seed, the client's part, and each answer with what follows it."""
    answers = ((b"a\n", Then.FIN), (b"", Then.HANG))

    script = parse(compose(b"seed", b"client\nmore", *answers))

    assert (script.seed, script.client, script.answers) == (b"seed", b"client\nmore", answers)


def test_the_mutator_repeats_itself() -> None:
    """The same seed makes the same scripts, and the dictionary is read as bytes."""
    from random import Random  # noqa: PLC0415 - of use here only

    one, other = Random(5), Random(5)

    made = [fresh(one, client=True, engine=True) for _ in range(50)]

    assert made == [fresh(other, client=True, engine=True) for _ in range(50)]
    assert b"Content-Length:\x0b5\r\n" in TOKENS


def test_a_finding_is_told_once_a_kind() -> None:
    """Findings of one place that differ in their bytes are one."""
    kinds = set()
    for value in (b"a", b"b"):
        with pytest.raises(Violation) as raised:
            require(None, f"answered {value!r}")
        kinds.add(kind_of(raised.value))

    assert len(kinds) == 1
