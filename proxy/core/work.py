"""What one server has in hand, and when it last showed that it gets on with it.

An engine whose scheduler is dead still answers `/ready`, and an engine in a long prefill may not.
So a server counts as stalled when it has work, no byte of an answer comes and its own account of
its load stands still, all at one time; and what comes from it proves more than a probe that hangs.
"""

from math import inf


class Work:
    """The work of one server; sequences and seconds, monotonic."""

    __slots__ = ("_alive_at", "_frozen_at", "_load_stamp", "expected", "heard_at")

    def __init__(self) -> None:
        self.expected = 0
        """Sequences whose next byte is the server's to send: not those of a client that is slow."""
        self.heard_at = -inf
        """When the last byte of an answer came."""
        self._alive_at = -inf
        """When it last showed a sign of life, or was given work while it had none."""
        self._load_stamp: float | None = None
        self._frozen_at = -inf
        """When its account of its load was last read and had not changed."""

    def expect(self, sequences: int, now: float) -> None:
        """It has to send something for `sequences` more."""
        if not self.expected:
            self._alive_at = now
        self.expected += sequences

    def expect_no_more(self, sequences: int) -> None:
        """It has nothing to send for these any more, or cannot."""
        self.expected -= sequences

    def heard(self, now: float) -> None:
        """A byte of an answer came."""
        self.heard_at = self._alive_at = now

    def load_read(self, stamp: float, now: float) -> None:
        """Its account of its load is of `stamp`, by its own clock."""
        if stamp == self._load_stamp:
            self._frozen_at = now
        else:
            self._load_stamp = stamp
            self._alive_at = now

    def forgive(self, now: float) -> None:
        """Count its silence from now on."""
        self._alive_at = now

    def silence(self) -> float:
        """Seconds for which it should have shown a sign of life and was seen to show none.

        Only up to the last reading that said so: of a server whose load cannot be read, or is not
        asked for, nothing is known, and a long prefill would look the same.
        """
        return max(0.0, self._frozen_at - self._alive_at) if self.expected else 0.0
