"""What a run of the stories has seen, kept for the table of docs/scaling.md (table.py)."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / ".scale"
"""One file for each router and story; Git ignores it."""


class Story(StrEnum):
    """The columns of the table."""

    SPREAD = "spread"
    STREAM = "stream and abort"
    SOCKET = "WebSocket"
    SESSION = "stays with its pair"
    ADDED = "a pair is added"
    DRAINED = "drained"
    KILLED = "killed"
    BACK = "and back"


def note(router: str, story: Story, words: str) -> None:
    """Keep what was seen, once all that the story holds a router to has held."""
    FOLDER.mkdir(exist_ok=True)
    name = f"{router} {story}".replace(" ", "-")
    found = {"router": router, "story": story, "seen": words}
    (FOLDER / f"{name}.json").write_text(json.dumps(found))


def noted() -> Mapping[tuple[str, str], str]:
    """By router and story; empty where nothing was run."""
    found = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    return {(each["router"], each["story"]): each["seen"] for each in found}
