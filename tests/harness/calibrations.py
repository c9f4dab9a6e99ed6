"""Calibrations as values: one of the founding profile, and the same with another verdict."""

from datetime import UTC, datetime
from typing import Final

from proxy.calibration import (
    Calibration,
    Cell,
    Contention,
    Crossover,
    Decode,
    Interval,
    Prefill,
    Server,
    Servers,
    Verdict,
    VerdictKind,
    Workload,
)

FOUNDING: Final = Calibration(
    created=datetime(2026, 11, 29, 12, 0, tzinfo=UTC),
    specswitch="0.0.0",
    verdict=Verdict(kind=VerdictKind.CROSSOVER, sentence="crossover in [2.9, 3.4]"),
    crossover=Crossover(
        in_flight=Interval(value=3.1, low=2.9, high=3.4),
        tokens_per_second=Interval(value=232.0, low=210.0, high=250.0),
    ),
    servers=Servers(
        spec=Server(
            fingerprint={"model": "simulated", "speculative_algorithm": "EAGLE3"},
            # (5 + 7.2 n) ms a round, 2.6 tokens.
            decode=Decode(fixed=0.0019, per_sequence=0.0028, bend=0.0, to=48.0),
            prefill=Prefill(fixed=0.003, per_token=0.00006),
            cap=48,
            acceptance_length=2.6,
            cells=(
                Cell(
                    concurrency=1.0,
                    requests=16,
                    tokens_per_second=213.0,
                    seconds_per_token=0.0047,
                    first_token_seconds=0.02,
                ),
            ),
        ),
        base=Server(
            fingerprint={"model": "simulated", "speculative_algorithm": None},
            decode=Decode(fixed=0.0068, per_sequence=0.0012, bend=0.0, to=64.0),
            prefill=Prefill(fixed=0.003, per_token=0.000055),
            cap=None,
            cells=(
                Cell(
                    concurrency=1.0, requests=16, tokens_per_second=125.0, seconds_per_token=0.008
                ),
            ),
        ),
    ),
    contention=Contention(concurrency=3.0, sum=0.9, topology="shared"),
    long_context=None,
    workload=Workload(prompt_tokens=1155.0, output_tokens=211.0, source="a public trace"),
)
"""The founding profile, as a perfect calibration would have it."""


def with_verdict(kind: VerdictKind) -> Calibration:
    """The same with another verdict, and without the figures that this one does not have."""
    crossover = FOUNDING.crossover
    if kind is not VerdictKind.CROSSOVER:
        crossover = Crossover(in_flight=None, tokens_per_second=None)
    verdict = Verdict(kind=kind, sentence=kind)
    return FOUNDING.model_copy(update={"verdict": verdict, "crossover": crossover})
