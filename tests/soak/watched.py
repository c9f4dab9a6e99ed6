"""specswitch that can be asked from outside what it still holds.

Told SIGUSR1 it writes one line to its log: the tasks of its loop, and how many of the things that
belong to a request or a connection are alive. Everything else is the program as it is.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from types import FrameType
from typing import Final

from proxy.cli import main
from proxy.core.inflight import Lease
from proxy.core.places import Ticket
from proxy.data.downstream import ClientConnection
from proxy.data.ledger import Account
from proxy.data.pool import Connecting
from proxy.data.relay import Relay
from proxy.data.upstream import EngineConnection

WATCHED: Final = (Account, ClientConnection, Connecting, EngineConnection, Lease, Relay, Ticket)
MESSAGE: Final = "what is held"


def _report(_number: int, _frame: FrameType | None) -> None:
    gc.collect()
    held = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, WATCHED))
    tasks = sorted(_name(task) for task in asyncio.all_tasks())
    line = {"level": "info", "message": MESSAGE, "tasks": tasks, "held": held}
    os.write(2, json.dumps(line).encode() + b"\n")


def _name(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", repr(coroutine))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _report)
    sys.argv = ["specswitch", "serve", *sys.argv[1:]]
    main()
