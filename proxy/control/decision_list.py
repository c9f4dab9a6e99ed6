"""What the admin listener says of the last decisions."""

from datetime import datetime

from pydantic import BaseModel

from proxy.core.words import Outcome, UpstreamName


class DecisionLine(BaseModel):
    """One request that was given a place; null is unknown."""

    time: datetime
    """When its place was given; time of day."""
    request_id: str | None
    endpoint: str
    """The route's template."""
    upstream: UpstreamName
    """The one that served it: after a retry the second."""
    reason: str
    mode: UpstreamName
    """Where generation went at that time."""
    in_flight: int | None
    """Sequences over both upstreams then, its own among them."""
    outcome: Outcome | None
    """null while it runs."""


class DecisionList(BaseModel):
    """The last decisions, newest first."""

    decisions: list[DecisionLine]
