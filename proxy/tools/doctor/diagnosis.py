"""What a check of the two servers found, and all findings as one report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from proxy.core.words import UpstreamName
from proxy.tools.doctor.server_info import ServerInfo


class Severity(StrEnum):
    """How much a finding matters, from least to most."""

    OK = "ok"  # checked, and as it should be
    NOTE = "note"  # worth knowing; nothing has to change
    WARNING = "warning"  # slower or less alike than it could be
    ERROR = "error"  # this is not a pair that can serve

    @property
    def rank(self) -> int:
        """0 for the least."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, as sentences for people and a code for programs."""

    code: str
    """Stable: `<part>.<what>`, for programs and for a search."""
    severity: Severity
    what: str
    why: str = ""
    """Why it matters; empty where all is well."""
    change: str = ""
    """What to change, with the flag and its value; empty where nothing has to be."""
    server: UpstreamName | None = None
    """Which server it is about; None for both."""
    names: tuple[str, ...] = ()
    """What `what` only counts, since it may be too much to read."""

    def fields(self) -> dict[str, str | list[str] | None]:
        """The finding as JSON has it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "server": None if self.server is None else self.server.value,
            "what": self.what,
            "why": self.why,
            "change": self.change,
            "names": list(self.names),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, the gravest first, and the two servers as they were read."""

    findings: tuple[Finding, ...]
    servers: Mapping[UpstreamName, ServerInfo]
    """Without those that could not be read."""
    acceptance_length: float | None = None
    """Of a few requests to spec, one at a time; None where none were sent or none told."""

    @property
    def worst(self) -> Severity:
        """The gravest severity among the findings."""
        return max((each.severity for each in self.findings), key=_rank, default=Severity.OK)

    @property
    def exit_code(self) -> int:
        """0 with nothing worse than a note, 1 with a warning, 2 with an error."""
        return max(0, self.worst.rank - Severity.NOTE.rank)

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(each for each in self.findings if each.severity is severity)

    def fields(self) -> dict[str, object]:
        """The report as JSON has it."""
        return {
            "worst": self.worst.value,
            "acceptance_length": self.acceptance_length,
            "findings": [each.fields() for each in self.findings],
        }


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings by severity, and in their own order within one."""
    return tuple(sorted(findings, key=lambda each: -each.severity.rank))


def _rank(severity: Severity) -> int:
    return severity.rank
