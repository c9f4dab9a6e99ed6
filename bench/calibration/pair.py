"""A simulated pair as a process: `python -m bench.calibration.pair PROFILE SEED SCALE`.

It prints its two addresses as JSON and ends with its standard input, so that whoever started it may
die in any way.
"""

import asyncio
import json
import sys

import uvloop

from bench.calibration.profiles import KNOWN
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair


async def serve(options: PairOptions) -> None:
    """Until standard input closes."""
    async with SimulatedPair(options) as pair:
        print(json.dumps({"spec": pair.spec_url, "base": pair.base_url}), flush=True)  # noqa: T201 - for the parent
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """As typed."""
    name, seed, scale = sys.argv[1:]
    options = PairOptions(profile=KNOWN[name], seed=int(seed), time_scale=float(scale))
    uvloop.run(serve(options))


if __name__ == "__main__":
    main()
