"""How soon the engine's connection is closed once its client has left."""

from collections.abc import Mapping
from statistics import median

from bench.speed.loading import Said


def left(said: Said) -> dict[int, int]:
    """When each client left, ns of the machine's clock, by its id."""
    found = said["left"]
    pairs = found if isinstance(found, list) else []
    return {int(id_): int(at) for id_, at in pairs}


def closed(page: bytes) -> dict[int, int]:
    """When each engine's connection closed before its stream had ended, likewise."""
    lines = [line.split() for line in page.decode().splitlines()]
    return {int(id_): int(at) for id_, at in lines}


def figures(
    left_at: Mapping[int, int], closed_at: Mapping[int, int], horizon: float
) -> dict[str, float | None]:
    """Times from the one to the other; who is missing counts with `horizon` seconds."""
    if not left_at:
        return {"closed_ms_p50": None, "closed_ms_max": None, "never_closed": None}
    times = [
        (closed_at[client] - at) / 1e6 if client in closed_at else horizon * 1e3
        for client, at in left_at.items()
    ]
    return {
        "closed_ms_p50": median(times),
        "closed_ms_max": max(times),
        "never_closed": float(sum(client not in closed_at for client in left_at)),
    }
