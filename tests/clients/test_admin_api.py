"""The admin API under schemathesis: what it describes is what it does, for good and bad data."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.clients import setup
from tests.clients.rows import HERE, SCHEMATHESIS, Client, row
from tests.clients.stand import Stand
from tests.harness.process import Specswitch

TOKEN = "t0ken"
PHASES = "examples,coverage,fuzzing"
NO_DIFFERENCE = "the admin API is the same whatever the engines are"


@row(
    "good and bad data: no 5xx, and every answer is one that is described",
    SCHEMATHESIS,
    real=NO_DIFFERENCE,
)
def test_the_admin_api(stand: Stand, client: Client, tmp_path: Path) -> None:
    """Every operation, and every check but what OpenAPI cannot say (schemathesis.toml)."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=stand.pair.spec_url,
        base_url=stand.pair.base_url,
        auth_admin_token=TOKEN,  # so that it is seen to be asked for
    ) as process:
        told = _run(process, tmp_path)
        described = json.loads(_described(process))
        state = process.state()
        process.nothing_left()

    operations = sum(len(methods) for methods in described["paths"].values())
    assert told["failures"] == [], told["failures"]
    assert told["errors"] == []
    assert told["complete"]
    assert told["operations"]["tested"] == operations >= 9
    assert told["test_cases"]["generated"] > 150
    assert state["control_set_by"], "no good data came through"


def _described(process: Specswitch) -> str:
    return process._client.get(f"{process.admin_url}/openapi.json").raise_for_status().text


def _run(process: Specswitch, folder: Path) -> dict[str, Any]:
    """One run, always of the same cases; the report as it has it."""
    report = folder / "report.json"
    done = subprocess.run(  # noqa: S603 - our own words
        [
            str(setup.PYTHON.with_name("schemathesis")),
            f"--config-file={HERE / 'schemathesis.toml'}",
            "run",
            f"{process.admin_url}/openapi.json",
            f"--header=Authorization: Bearer {TOKEN}",
            f"--phases={PHASES}",
            "--max-examples=30",
            "--seed=1",
            "--continue-on-failure",
            "--no-color",
            "--report=json",
            f"--report-json-path={report}",
        ],
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert isinstance(told, dict)
    return told
