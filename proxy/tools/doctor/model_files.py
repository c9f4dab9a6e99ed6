"""Two small files beside a model's weights, where the model is a folder of this machine.

SGLang takes defaults from them and shows neither over HTTP. A server elsewhere has its model
elsewhere too, and its files stay unknown.
"""

import json
from pathlib import Path
from typing import Final, Literal

from proxy.core.fields import Fields

_MAX_BYTES: Final = 2**20
"""Such a file has a few kB."""


def read_model_file(
    model: str | None, file: Literal["config.json", "generation_config.json"]
) -> Fields | None:
    """Read `file` of the folder `model`; None where there is no such folder here.

    A folder without the file says nothing in it: no fields. The path comes from the server, so
    nothing else than these two names is opened, and no more than a small file is read.
    """
    if model is None or not Path(model).is_absolute() or not Path(model).is_dir():
        return None
    path = Path(model) / file
    if not path.is_file():
        return Fields()
    try:
        with path.open("rb") as opened:
            return Fields(json.loads(opened.read(_MAX_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None  # there, but not for us to read: unknown
