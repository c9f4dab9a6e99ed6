"""Counters out of a metrics page: the few names, summed over their labels, or nothing."""

import pytest

from proxy.control.counters import Counters, counters_of
from proxy.core.signals import Totals

PAGE = b"""\
# HELP sglang:generation_tokens_histogram Histogram of generation token length.
# TYPE sglang:generation_tokens_histogram histogram
sglang:generation_tokens_histogram_sum{engine_type="unified",model_name="tiny"} 6364.0
sglang:generation_tokens_histogram_count{engine_type="unified",model_name="tiny"} 41.0
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="tiny"} 676.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="true",model_name="tiny"} 5688.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="tiny"} 2268.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{engine_type="unified",is_streaming="false",model_name="tiny"} 7.0
sglang:num_requests_total{engine_type="unified",is_streaming="true",model_name="tiny"} 34.0
"""
"""Cut from a recorded page of a speculative server."""


def test_a_recorded_page() -> None:
    """Streamed or not is one sum; the first token of each sequence is of no verify round."""
    counters = counters_of(PAGE)

    assert counters == Counters(Totals(6364.0, 41.0), 2268.0)
    assert counters.verified == Totals(6323.0, 2268.0)


@pytest.mark.parametrize("page", [b"", b"\n", b"nothing of the kind", PAGE[:200]])
def test_what_has_not_counted_yet_is_zero(page: bytes) -> None:
    """SGLang shows a counter only once it has counted."""
    assert counters_of(page) == Counters(Totals(0.0, 0.0), 0.0)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"sglang:num_requests_total{} 5", 5.0),
        (b'sglang:num_requests_total{m="a}b {c} 9"} 5', 5.0),
        (b'sglang:num_requests_total{m="x"} 5.0 1795970522391', 5.0),
        (b'sglang:num_requests_total{m="x"} 1.5e+06', 1.5e6),
        (b'# sglang:num_requests_total{m="x"} 7', 0.0),
        (b'x{m="sglang:num_requests_total{"} 7', 0.0),
        (b'sglang:num_requests_total_created{m="x"} 7', 0.0),
        (b"sglang:num_requests_total 7", 0.0),
    ],
)
def test_odd_lines(line: bytes, value: float) -> None:
    """Braces within labels, a time stamp, no newline at the end, and names that only look so."""
    for page in (line, line + b"\n", b"\n" + line + b"\nother{} 1\n"):
        counters = counters_of(page)
        assert counters is not None
        assert counters.ended.times == value


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "", "five", "0x5", "\xff"])
@pytest.mark.parametrize(
    "name", ["generation_tokens_total", "num_requests_total", "spec_verify_calls_total"]
)
def test_a_counter_that_makes_no_sense_spoils_the_page(name: str, value: str) -> None:
    """Half a page could show a mean that never was."""
    page = PAGE + f'sglang:{name}{{m="y"}} {value}\n'.encode("latin-1")
    assert counters_of(page) is None
