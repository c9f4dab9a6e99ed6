"""Start a command once another server is ready: START_AFTER=URL python3 after.py COMMAND...

The compose file starts base so, after spec, since `--mem-fraction-static` is a share of what is
free at launch. Its `depends_on` has them in order at `docker compose up` only: after a restart of
the machine Docker itself starts both at once.

A server that is not there at all is not waited for: base must come back when spec is out of use.
"""

import http.client
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

EACH: Final = 1.0
"""Seconds between two looks."""
ABSENT: Final = 30
"""Looks without the server's name before it counts as absent: Docker starts it at the same time."""
LONGEST: Final = 3600
"""Looks before the command starts all the same: a first start downloads the model."""


def there(url: str) -> bool | None:
    """Whether the server is ready; None where nobody has its name.

    Refused is not absent: SGLang listens only when its model is loaded.
    """
    at = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=5)
        connection.request("GET", at.path)
        return connection.getresponse().status == HTTPStatus.OK
    except socket.gaierror:
        return None
    except (OSError, http.client.HTTPException):  # refused, or it is just dying
        return False


def why_go(looks: Iterator[bool | None], absent: int = ABSENT, longest: int = LONGEST) -> str:
    """Look until the command may start, and say why it may."""
    missed = 0
    for _ in range(longest):
        ready = next(looks)
        if ready:
            return "is ready"
        missed = missed + 1 if ready is None else 0
        if missed >= absent:
            return "is not there"
    return "is still not ready"


def looks(url: str) -> Iterator[bool | None]:
    """What `there` says, again and again."""
    while True:
        yield there(url)
        time.sleep(EACH)  # noqa: TID251 - a process of its own, before the engine; no event loop


def main(command: Sequence[str], url: str) -> None:
    """Become the command; it has this process then, and its signals."""
    if not command:
        sys.exit("after.py: there is no command")
    if url:
        print(f"after.py: {url} {why_go(looks(url))}", file=sys.stderr, flush=True)  # noqa: T201 - its log
    os.execvp(command[0], list(command))  # noqa: S606 - the compose file's own words


if __name__ == "__main__":
    main(sys.argv[1:], os.environ.get("START_AFTER", ""))
