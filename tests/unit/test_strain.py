"""The speculative server's own word: what counts as strain, for how long, and what says nothing."""

from dataclasses import replace

import pytest

from proxy.core.signals import EngineSignals
from proxy.core.strain import Strain

WELL = EngineSignals(
    waiting=0,
    token_usage=0.3,
    acceptance_length=2.6,
    at=0.0,
    age_seconds=0.0,
    stale_after=10.0,
)
QUEUES = replace(WELL, waiting=3)
POOR = replace(WELL, acceptance_length=1.2)


def told(strain: Strain, signals: EngineSignals, *, at: float) -> Strain:
    """The same after one more reading."""
    strain.read(replace(signals, at=at), at)
    return strain


def test_nothing_read_says_nothing() -> None:
    """A server that tells nothing is not under strain."""
    assert not Strain(1.5).shows(0.0)


def test_one_reading_with_a_queue_is_a_prefill() -> None:
    """Two in a row are a queue, and one without ends it."""
    strain = told(Strain(1.5), QUEUES, at=0.0)
    assert not strain.shows(0.0)
    assert told(strain, QUEUES, at=2.0).shows(2.0)
    assert not told(strain, WELL, at=4.0).shows(4.0)


def test_an_unknown_queue_is_none() -> None:
    """An engine that no longer tells must not keep us on base for ever."""
    strain = told(told(Strain(1.5), QUEUES, at=0.0), QUEUES, at=2.0)
    assert not told(strain, replace(QUEUES, waiting=None), at=4.0).shows(4.0)


@pytest.mark.parametrize(("usage", "full"), [(0.91, True), (0.9, False), (None, False)])
def test_a_full_cache_shows(usage: float | None, *, full: bool) -> None:
    """At once: the next thing that it does is to take sequences back."""
    strain = told(Strain(1.5), replace(WELL, token_usage=usage), at=0.0)
    assert strain.shows(0.0) is full


def test_what_is_stale_says_nothing() -> None:
    """An engine that cannot be read any more is not judged by what it was."""
    strain = told(Strain(1.5), replace(WELL, token_usage=0.99), at=0.0)
    assert strain.shows(10.0)
    assert not strain.shows(10.1)


def test_age_of_the_reading_counts() -> None:
    """What the engine wrote 9 s before it was read is stale a second later."""
    strain = told(
        Strain(1.5),
        replace(
            WELL,
            token_usage=0.99,
            age_seconds=9.0,
            stale_after=10.0,
        ),
        at=0.0,
    )
    assert strain.shows(1.0)
    assert not strain.shows(1.5)


def test_poor_acceptance_must_last() -> None:
    """Half a minute below the bound, without one good reading in between."""
    strain = Strain(1.5)
    for at in (0.0, 10.0, 20.0, 29.0):
        assert not told(strain, POOR, at=at).shows(at)
    assert told(strain, POOR, at=30.0).shows(30.0)


@pytest.mark.parametrize("accepted", [2.0, 1.5])
def test_a_better_reading_begins_anew(accepted: float) -> None:
    """At the bound is good enough."""
    strain = told(Strain(1.5), POOR, at=0.0)
    told(strain, replace(WELL, acceptance_length=accepted), at=20.0)
    assert not told(strain, POOR, at=31.0).shows(31.0)


def test_an_unknown_acceptance_says_nothing() -> None:
    """Under thin load every other reading has too few rounds; those that tell are all poor."""
    strain = Strain(1.5)
    for at in range(0, 30, 2):
        acceptance = 1.2 if at % 4 == 0 else None
        assert not told(strain, replace(WELL, acceptance_length=acceptance), at=at).shows(at)
    assert told(strain, POOR, at=31.0).shows(31.0)


def test_poor_readings_far_apart_are_not_one_time() -> None:
    """Nothing is known of the minute between them."""
    strain = told(Strain(1.5), POOR, at=0.0)
    assert not told(strain, POOR, at=60.0).shows(60.0)


def test_queues_far_apart_are_not_one_queue() -> None:
    """What was between two readings an hour apart is unknown."""
    strain = told(Strain(1.5), QUEUES, at=0.0)
    assert not told(strain, QUEUES, at=3600.0).shows(3600.0)


def test_after_poor_acceptance_the_way_back_is_barred_for_a_minute() -> None:
    """Without speculation nothing is accepted that could be read, so it must be tried again."""
    strain = told(told(Strain(1.5), POOR, at=0.0), POOR, at=30.0)
    assert strain.shows(89.9)
    assert not strain.shows(90.0)


def test_without_a_bound_no_acceptance_is_poor() -> None:
    """0 is no bound."""
    strain = told(told(Strain(0.0), POOR, at=0.0), POOR, at=60.0)
    assert not strain.shows(60.0)


def test_another_server_has_none() -> None:
    """What is known is of the one that was there before."""
    strain = told(told(Strain(1.5), POOR, at=0.0), POOR, at=30.0)
    told(told(strain, QUEUES, at=31.0), QUEUES, at=32.0)
    strain.forget()
    assert not strain.shows(33.0)
