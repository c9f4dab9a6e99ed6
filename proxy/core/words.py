"""The closed sets of words that code, metrics, logs and configuration share (docs/glossary.md).

A word that only one module needs lives in that module.
"""

from enum import StrEnum


class UpstreamName(StrEnum):
    """One of the two servers of the pair; also the mode, which names where new generation goes."""

    SPEC = "spec"
    BASE = "base"

    @property
    def other(self) -> "UpstreamName":
        """The one that is not this one."""
        return UpstreamName.BASE if self is UpstreamName.SPEC else UpstreamName.SPEC


class Control(StrEnum):
    """The operator's override of the mode."""

    AUTO = "auto"
    SPEC = "spec"
    BASE = "base"
    OBSERVE = "observe"  # decides and logs, sends all to base


class Topology(StrEnum):
    """Whether the two servers share their GPUs."""

    SHARED = "shared"  # one mode at a time
    SEPARATE = "separate"  # both at once: what spec has no room for spills to base


class AdminState(StrEnum):
    """What the operator has said about an upstream."""

    READY = "ready"
    DRAIN = "drain"  # takes nothing new, is still probed
    MAINT = "maint"  # takes nothing new, is not probed


class Health(StrEnum):
    """What probes and requests have said about an upstream."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBATION = "probation"  # back from ejection: one request at a time until one succeeds


class EjectionCause(StrEnum):
    """Why an upstream was ejected."""

    PROBE = "probe"
    REQUESTS = "requests"
    STALLED = "stalled"
    MISCONFIGURED = "misconfigured"


class Outcome(StrEnum):
    """How a request ended; counted once, at its end."""

    OK = "ok"
    FAILED = "failed"  # the upstream's fault
    ABANDONED = "abandoned"  # the client left, which says nothing about the upstream
    REJECTED = "rejected"  # our own refusal


class SwitchReason(StrEnum):
    """Why the mode changed."""

    IN_FLIGHT = "in_flight"
    RATE = "rate"
    CALM = "calm"
    ENGINE = "engine"
    HEALTH = "health"
    CONTROL = "control"
    FLAP = "flap"
    UNCALIBRATED = "uncalibrated"


class RetryCause(StrEnum):
    """Why a request was sent a second time."""

    CONNECT = "connect"
    REFUSAL = "refusal"
    STALE_CONNECTION = "stale_connection"
