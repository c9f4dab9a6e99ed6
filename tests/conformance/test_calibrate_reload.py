"""`calibrate --reload`: a specswitch that runs is told of the file, and is seen to go by it."""

import asyncio
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from proxy.calibration import Calibration, dump
from proxy.errors import ConfigError, SpecswitchError
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from proxy.tools.calibrate.handover import hand_over, reload
from proxy.tools.calibrate.run import Options, calibrate
from tests.harness.calibrations import FOUNDING
from tests.harness.running import Rig, rig

TOKEN = "token"
NOBODY = "http://127.0.0.1:1"
"""tcpmux: nothing of ours or anybody's listens there."""


def written(folder: Path, calibration: Calibration = FOUNDING) -> str:
    """The name of a file that holds it."""
    file = folder / "calibration.json"
    file.write_text(dump(calibration))
    return str(file)


def gone_by(it: Rig) -> Calibration | None:
    """The calibration that specswitch has now."""
    return it.app.calibration


async def test_it_goes_by_what_was_written(tmp_path: Path) -> None:
    """A file that was not there at the start, and one that replaces another."""
    file = tmp_path / "calibration.json"
    async with rig(
        auth__admin_token=TOKEN, policy__calibration=str(file), policy__crossover=0.0
    ) as it:
        assert gone_by(it) is None
        written(tmp_path)
        await hand_over(it.app.admin_url, FOUNDING, token=TOKEN)
        assert gone_by(it) == FOUNDING
        newer = FOUNDING.model_copy(update={"created": FOUNDING.created.replace(year=2027)})
        written(tmp_path, newer)
        await hand_over(it.app.admin_url, newer, token=TOKEN)
        assert gone_by(it) == newer


async def _refused(it: Rig, calibration: Calibration = FOUNDING, token: str | None = None) -> str:
    with pytest.raises(SpecswitchError) as raised:
        await hand_over(it.app.admin_url, calibration, token=token)
    return str(raised.value)


async def test_it_goes_by_another(tmp_path: Path) -> None:
    """Another file, none, or N* by hand: it has been told, and the measurement was for nothing."""
    async with rig(policy__calibration=written(tmp_path), policy__crossover=0.0) as it:
        other = FOUNDING.model_copy(update={"created": FOUNDING.created.replace(year=2027)})
        assert "another calibration than this: the one of 2026-11-29" in await _refused(it, other)
    async with rig(policy__calibration=str(tmp_path / "none"), policy__crossover=0.0) as it:
        assert "another calibration than this: none" in await _refused(it)
    async with rig(policy__calibration=written(tmp_path), policy__crossover=4.0) as it:
        assert "N* is not set by hand" in await _refused(it)


@pytest.mark.parametrize("token", [None, "another"])
async def test_a_wrong_token(token: str | None) -> None:
    """The variable that holds it is named, and the token is not."""
    async with rig(auth__admin_token=TOKEN) as it:
        with pytest.raises(SpecswitchError, match="SPECSWITCH_AUTH_ADMIN_TOKEN") as raised:
            await reload(it.app.admin_url, token=token)
        assert "another " not in str(raised.value).replace("another admin token", "")


async def test_a_reload_that_is_refused() -> None:
    """What specswitch finds wrong is said, each with its path."""
    async with rig() as it:
        it.keys["policy.crossover"] = -7.0
        with pytest.raises(SpecswitchError, match=r"refuses: 422, policy\.crossover: must be"):
            await reload(it.app.admin_url, token=None)


async def test_what_is_no_admin_listener() -> None:
    """The endpoint, nobody, or no URL: said in a line each."""
    async with rig() as it:
        with pytest.raises(SpecswitchError, match="refuses: 404, "):
            await reload(it.app.url, token=None)
        with pytest.raises(SpecswitchError, match="is no admin listener of a specswitch"):
            await reload(it.base.url, token=None)
    with pytest.raises(SpecswitchError, match=f"no specswitch answers at {NOBODY}: "):
        await reload(NOBODY, token=None)
    with pytest.raises(ConfigError, match="is no URL"):
        await reload("elsewhere", token=None)


async def test_calibrate_asks_before_it_measures(tmp_path: Path) -> None:
    """Nothing is measured for a specswitch that cannot be told of it."""
    said = StringIO()
    options = Options(
        spec_url=NOBODY, base_url=NOBODY, out=tmp_path / "c.json", reload="http://127.0.0.1:1"
    )
    with pytest.raises(SpecswitchError, match="no specswitch answers"):
        await calibrate(options, clock=time.monotonic, console=Console(file=said))
    assert said.getvalue() == ""


@pytest.mark.slow
async def test_the_whole_way(tmp_path: Path) -> None:
    """Measured, written, taken over; and a hand-over that fails leaves the file."""
    out, said = tmp_path / "c.json", StringIO()
    console = Console(file=said, width=200)
    async with (
        SimulatedPair(PairOptions(time_scale=6.0)) as pair,
        # Probes that give up would end in the midst of it, where all of it has one loop.
        rig(policy__calibration=str(out), policy__crossover=0.0, health__timeout=30.0) as it,
    ):
        options = Options(
            spec_url=pair.spec_url,
            base_url=pair.base_url,
            out=out,
            reload=it.app.admin_url,
            levels=(1, 8),
            output_tokens=24,
            contention=False,
            long_tokens=0,
            prefill_tokens=(64, 512),
            most_late=1e9,
            resamples=20,
        )
        outcome = await calibrate(options, clock=time.monotonic, console=console)
        assert gone_by(it) == outcome.calibration
        assert f"the specswitch at {it.app.admin_url} goes by it now" in said.getvalue()
        assert "at a reload" not in said.getvalue()

        it.keys["policy.crossover"] = 4.0
        again = replace(options, out=tmp_path / "other.json")
        with pytest.raises(SpecswitchError, match=r"other\.json is written all the same"):
            await asyncio.wait_for(
                calibrate(again, clock=time.monotonic, console=console), timeout=120
            )
        assert (tmp_path / "other.json").exists()
