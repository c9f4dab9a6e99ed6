"""The calibration file: what `specswitch calibrate` measured, and what `serve` goes by.

JSON, versioned, validated whole. What is unknown is null; JSON has no infinity, so that speculation
always or never pays is said by the verdict and not by a number.
"""

import json
import stat
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from proxy.core import curves
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError

VERSION: Final = 1
"""Of the format. Another one is refused: half-understood figures would steer silently."""

_MOST_BYTES: Final = 16 * 2**20
"""A file of all samples has some hundred kB; what is larger is another file."""


class CalibrationError(SpecswitchError):
    """A calibration file that cannot be used; the message names the file and what is wrong."""


class VerdictKind(StrEnum):
    """What a calibration found."""

    CROSSOVER = "crossover"  # speculation wins below N*, base above
    NO_CROSSOVER = "no_crossover"  # speculation wins as far as was measured
    NEVER_WINS = "never_wins"  # not even for a lone request
    UNDECIDED = "undecided"  # the figures do not tell


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Figure = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Sequences or tokens/s: more than any server has."""
_Tokens = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="null")


class Interval(_Part):
    """A figure with its 90 % interval."""

    value: _Figure
    low: _Figure
    high: _Figure

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("must be in order: low, value, high")
        return self


class Verdict(_Part):
    """What was found, as a word and as a sentence."""

    kind: Annotated[VerdictKind, Field(strict=False)]
    sentence: str


class Crossover(_Part):
    """Where the curves cross; null where they do not, or where it could not be told."""

    in_flight: Interval | None
    """N*, sequences."""
    tokens_per_second: Interval | None
    """λ*, offered output tokens/s."""


class Decode(_Part):
    """The fitted curve, see core/curves.Curve."""

    fixed: _Number
    per_sequence: _Number
    bend: _Number
    to: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        curve = self.curve
        steps = [1.0 + (self.to - 1.0) * step / 16 for step in range(17)]
        times = [curve.seconds_per_token(n) for n in steps]
        if min(times) <= 0.0 or curve.seconds_per_token(2.0 * self.to) <= 0.0:
            raise ValueError("must give a time above 0 for every number in flight")
        return self

    @property
    def curve(self) -> curves.Curve:
        """The same as the core takes it."""
        return curves.Curve(self.fixed, self.per_sequence, self.bend, self.to)


class Prefill(_Part):
    """Seconds to fill a prompt: fixed + per_token x tokens."""

    fixed: _Amount
    per_token: _Amount


class Cell(_Part):
    """One concurrency as it was measured: medians over its requests."""

    concurrency: _Positive
    """Mean sequences in flight while it was measured."""
    requests: Annotated[int, Field(ge=1)]
    tokens_per_second: _Positive
    seconds_per_token: _Positive
    first_token_seconds: _Amount | None = None


class Server(_Part):
    """One server of the pair."""

    fingerprint: Mapping[str, str | int | None]
    """What it was, see core/fingerprint."""
    decode: Decode
    prefill: Prefill
    cap: Annotated[int, Field(ge=1, le=10**9)] | None
    """Sequences that it ran at once; null for no bound."""
    acceptance_length: _Positive | None = None
    cells: tuple[Cell, ...] = Field(strict=False)

    @property
    def server(self) -> curves.Server:
        """The same as the core takes it."""
        filling = curves.Prefill(self.prefill.fixed, self.prefill.per_token)
        return curves.Server(self.decode.curve, filling, self.cap)


class Servers(_Part):
    """The pair."""

    spec: Server
    base: Server


class Contention(_Part):
    """Both servers at once, each with a closed loop of `concurrency`."""

    concurrency: _Positive
    sum: _Positive
    """Of the two rates, each relative to the same server alone."""
    topology: Literal["shared", "separate"]
    """What that suggests."""


class LongContext(_Part):
    """The same with long prompts."""

    prompt_tokens: _Positive
    crossover: Interval | None
    """N* there, sequences; null where there is none."""
    moves: bool
    """Whether it is more than twice, or less than half, the one of ordinary prompts."""


class Workload(_Part):
    """What λ* was computed for, and L̂ until responses tell."""

    prompt_tokens: _Tokens
    """Mean."""
    output_tokens: _Tokens
    """Mean of natural lengths, not of the measured requests."""
    source: str
    """Where the lengths are from."""


class Calibration(_Part):
    """The file."""

    version: Literal[1] = VERSION
    created: Annotated[datetime, Field(strict=False)]
    specswitch: str
    """The version that wrote it."""
    verdict: Verdict
    crossover: Crossover
    servers: Servers
    contention: Contention | None
    long_context: LongContext | None
    workload: Workload
    conditions: Mapping[str, str | int | float | bool | None] = {}
    """How it was measured, for people."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        crosses = self.verdict.kind is VerdictKind.CROSSOVER
        if crosses is (self.crossover.in_flight is None):
            raise ValueError("verdict and crossover.in_flight contradict each other")
        if self.crossover.tokens_per_second is not None and not crosses:
            raise ValueError("crossover.tokens_per_second needs a crossover")
        return self

    @property
    def in_flight(self) -> float | None:
        """N*: inf where there is none, 0 where speculation never wins, None where undecided."""
        return self._figure(self.crossover.in_flight)

    @property
    def tokens_per_second(self) -> float | None:
        """λ*, the same way; None also where only N* is known."""
        return self._figure(self.crossover.tokens_per_second)

    def _figure(self, found: Interval | None) -> float | None:
        match self.verdict.kind:
            case VerdictKind.CROSSOVER:
                return None if found is None else found.value
            case VerdictKind.NO_CROSSOVER:
                return inf
            case VerdictKind.NEVER_WINS:
                return 0.0
            case VerdictKind.UNDECIDED:
                return None

    def server(self, name: UpstreamName) -> Server:
        """What is known of the server called `name`."""
        return self.servers.spec if name is UpstreamName.SPEC else self.servers.base


def read(path: Path) -> Calibration:
    """The file at `path`; raises FileNotFoundError if there is none, CalibrationError if it is bad.

    What is wrong is named with its place in the file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, for ever
            raise CalibrationError(f"{path} cannot be read: it is no file")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise CalibrationError(f"{path} cannot be read: {why}") from error
    if len(content) > _MOST_BYTES:
        raise CalibrationError(f"{path} is no calibration: it has more than 16 MiB")
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Calibration:
    """The calibration that `content` of the file `name` is; raises CalibrationError."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{name} is not JSON: {error}") from error
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise CalibrationError(
            f"{name} is no calibration of format {VERSION}; "
            f"make one with this version's `specswitch calibrate`"
        )
    try:
        return Calibration.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CalibrationError(f"{name}: {where}: {first['msg']}") from error


def dump(calibration: Calibration) -> str:
    """The text of a file that `read` takes."""
    return calibration.model_dump_json(indent=2) + "\n"
