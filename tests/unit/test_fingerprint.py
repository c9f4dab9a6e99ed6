"""Whether a server is the one that was calibrated."""

from dataclasses import replace

import pytest

from proxy.core.fingerprint import differences, fingerprint_of
from proxy.core.identity import Identity

SERVER = Identity(
    known=True,
    speculative_algorithm="EAGLE3",
    model="m/8b",
    version="0.5.23",
    context_length=32768,
    max_running_requests=48,
    graph_ceiling=48,
)


def test_the_same_server_is_the_same() -> None:
    """Every field that counts is there and alike."""
    assert fingerprint_of(SERVER)["model"] == "m/8b"
    assert differences(fingerprint_of(SERVER), SERVER) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.5.24"}, "version is 0.5.24, calibrated with 0.5.23"),
        ({"model": "m/70b"}, "model is m/70b, calibrated with m/8b"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16, calibrated with unknown"),
        ({"graph_ceiling": None}, "graph_ceiling is unknown, calibrated with 48"),
    ],
)
def test_each_difference_is_said(change: dict[str, str | int | None], said: str) -> None:
    """What moves the curves, with both values."""
    other = replace(SERVER, **change)  # type: ignore[arg-type]  # names of fields with their types
    assert differences(fingerprint_of(SERVER), other) == (said,)


def test_what_memory_decides_at_each_start_does_not_count() -> None:
    """How many sequences run is read from the server anyway."""
    assert differences(fingerprint_of(SERVER), replace(SERVER, max_running_requests=40)) == ()


def test_a_server_that_says_nothing_is_trusted() -> None:
    """When it was calibrated, and now."""
    nothing = Identity(known=False)
    assert fingerprint_of(nothing) == {}
    assert differences({}, SERVER) == ()
    assert differences(fingerprint_of(SERVER), nothing) == ()


def test_a_field_that_a_file_does_not_have_is_not_compared() -> None:
    """A later version may look at more than the one that wrote the file."""
    assert differences({"model": "m/8b"}, SERVER) == ()
