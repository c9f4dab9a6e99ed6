"""What a request needs of the connection of its client."""

from typing import Protocol


class Client(Protocol):
    """What a request needs of its client's connection."""

    keep_alive: bool
    """Whether the connection can serve another request after this answer."""
    closing_is_end: bool
    """Whether a clean close would mark the end of this answer."""

    @property
    def slow(self) -> bool:
        """Whether it has more to read than it takes."""

    def write(self, *pieces: bytes) -> None:
        """Send `pieces` with the next flush."""

    def pass_over_body(self) -> bool:
        """Read on past the body of a request that is answered at its head; whether it was there."""

    def take_ahead(self) -> bytes:
        """What was sent behind the request, which is no HTTP; nor is what comes from now on."""

    def hold_back(self) -> None:
        """Take nothing from it."""

    def go_on(self) -> None:
        """Take again."""

    def cut(self) -> None:
        """End now; not so that it could pass for the end of an answer."""

    def failed(self, fault: Exception) -> None:
        """A fault of ours in this request: report it, and give the connection up."""

    def request_over(self) -> None:
        """The answer is written; the request holds nothing any more."""

    def request_moved(self) -> None:
        """Something has happened outside of a read of the client: flush, and look at the time."""
