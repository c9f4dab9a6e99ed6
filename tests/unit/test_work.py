"""What one server has in hand, and whether it gets on with it."""

import pytest

from proxy.core.work import Work


@pytest.fixture
def work() -> Work:
    """A server that gives an account of its load, with one sequence in hand since 100.0."""
    made = Work()
    made.load_read(1.0, 50.0)
    made.expect(1, 100.0)
    return made


def test_silence_counts_from_when_there_was_work(work: Work) -> None:
    """An idle server owes nothing."""
    work.load_read(1.0, 130.0)
    assert work.silence() == 30.0


def test_silence_is_only_what_was_seen(work: Work) -> None:
    """A load that cannot be read, or is not asked for, says nothing of the server."""
    assert work.silence() == 0.0
    work.load_read(1.0, 110.0)
    assert work.silence() == 10.0  # and stays so, however much later it is asked


def test_further_work_is_no_sign_of_life(work: Work) -> None:
    """Requests that pile up at a dead server do not keep it alive."""
    work.expect(5, 120.0)
    work.load_read(1.0, 130.0)
    assert work.silence() == 30.0


def test_a_byte_is_a_sign_of_life(work: Work) -> None:
    """And when it came is kept."""
    work.heard(125.0)
    work.load_read(1.0, 130.0)
    assert (work.silence(), work.heard_at) == (5.0, 125.0)


def test_a_load_that_moves_is_a_sign_of_life(work: Work) -> None:
    """One that stands still is none, however often it is read."""
    work.load_read(2.0, 110.0)
    work.load_read(2.0, 130.0)
    assert work.silence() == 20.0


def test_a_server_without_work_is_never_silent(work: Work) -> None:
    """Nor is one whose clients are all slow."""
    work.expect_no_more(1)
    work.load_read(1.0, 900.0)
    assert work.silence() == 0.0


def test_a_server_that_tells_no_load_is_not_judged() -> None:
    """There is nothing that could stand still."""
    work = Work()
    work.expect(1, 100.0)
    assert work.silence() == 0.0


def test_silence_can_be_forgiven(work: Work) -> None:
    """It counts anew."""
    work.load_read(1.0, 128.0)
    work.forgive(129.0)
    assert work.silence() == 0.0
    work.load_read(1.0, 130.0)
    assert work.silence() == 1.0
