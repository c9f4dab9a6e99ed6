"""What the core and the data plane tell of themselves; metrics and logs listen.

An observer must not raise and must not call back.
"""

from typing import Protocol

from msgspec import Struct

from proxy.core.modes import Switch
from proxy.core.words import EjectionCause, Health, Outcome, RetryCause, UpstreamName


class Record(Struct, kw_only=True, eq=False):
    """One request, told once, at its end. Seconds are durations; None is unknown or never."""

    request_id: str | None
    """None for what never became a request."""
    endpoint: str
    """The route's template."""
    method: str
    key_name: str | None = None
    upstream: UpstreamName | None = None
    """None for our own answers."""
    reason: str | None = None
    mode: UpstreamName | None = None
    in_flight: int | None = None
    """Sequences over both upstreams when it was decided, its own among them."""
    decided_at: float | None = None
    """When its place was given; seconds, monotonic."""
    outcome: Outcome = Outcome.ABANDONED
    status: int | None = None
    """The status sent to the client; None if none was."""
    code: str | None = None
    """The code of our own error, or of an error event in the stream."""
    stream: bool = False
    sequences: int = 0
    attempts: int = 0
    waited_seconds: float | None = None
    """In the waiting room."""
    overhead_seconds: float | None = None
    """From the whole request here to the request sent, without the waiting room."""
    first_token_seconds: float | None = None
    """From the whole request here to the first token."""
    duration_seconds: float = 0.0
    """From the first byte of the head to the end."""
    output_tokens: int | None = None
    """From usage, never from chunks."""
    seconds_per_token: float | None = None
    """After the first token, from usage."""
    request_bytes: int = 0
    response_bytes: int = 0
    midstream: bool = False
    """Whether the upstream failed after the head had gone to the client."""


class Observer(Protocol):
    """Who is told."""

    def started(self) -> None:
        """A request's head has been read."""

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """A place was given."""

    def retried(self, cause: RetryCause) -> None:
        """A request goes out a second time."""

    def ended(self, record: Record) -> None:
        """A request ended."""

    def switched(self, switch: Switch) -> None:
        """The mode changed."""

    def wanted(self, switch: Switch) -> None:
        """The controller changed its mind, and the mode does not follow: the operator holds it."""

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """The servers are those that were calibrated, or not for these reasons."""

    def held(self, seconds: float) -> None:
        """The mode has changed too often: it stays on base for so long."""

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """An upstream's health changed; `detail` is a sentence for the operator, may be empty."""
