"""The rules of deploy/prometheus as a PrometheusRule: `python -m deploy.kubernetes.rules`.

Edit those and not what it writes; a test holds them together.
"""

import sys
from pathlib import Path
from typing import Final

import yaml

RULES: Final = Path(__file__).parents[1] / "prometheus"
FILE: Final = Path(__file__).parent / "components" / "watch" / "rules.yaml"
WIDTH: Final = 100_000
"""Of a line: an expression stays on one, however long."""


def made() -> str:
    """The PrometheusRule, as the file has it."""
    groups = [
        group
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((RULES / name).read_text(encoding="utf-8"))["groups"]
    ]
    whole = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "specswitch",
            "labels": {"app.kubernetes.io/name": "specswitch"},
        },
        "spec": {"groups": groups},
    }
    head = "# Written by `python -m deploy.kubernetes.rules`, from deploy/prometheus.\n"
    return head + yaml.safe_dump(whole, sort_keys=False, width=WIDTH)


if __name__ == "__main__":
    FILE.write_text(made(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
