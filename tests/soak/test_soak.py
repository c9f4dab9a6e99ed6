"""The short soak: what `make soak` does with 20,000 requests, with 1,000 of a fixed seed."""

from pathlib import Path

import pytest

from tests.soak.reckoning import tally
from tests.soak.soak import Soak

SEED, COUNT = 20, 1000


@pytest.mark.slow
async def test_a_thousand_requests_end_well(tmp_path: Path) -> None:
    """Clients, specswitch and engines agree on every request, and nothing is held at the end."""
    done: list[int] = []
    result = await Soak(SEED, COUNT, tmp_path, progress=done.append).run()
    assert result.findings == [], f"seed {SEED}: {result.findings[:20]}"
    had = tally(result.evidence)
    assert sum(had.ways.values()) >= COUNT
    assert set(had.outcomes) == {"ok", "failed", "abandoned", "rejected"}
    assert had.outcomes["ok"] > COUNT / 5, had
    assert {"upstream_reset", "bad_request", "not_found"} <= set(had.codes), had
    assert had.retries["stale_connection"] + had.retries["connect"] > 0, had
    assert result.kills > 0
    assert result.reloads > 0
    assert done[-1] == len(result.evidence.seen)
