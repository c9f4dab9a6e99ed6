"""A client behind two pipes: a case and where to find the endpoint in, what was seen out.

Runs in the clients' environment. A line of JSON asks: `{"case", "url", "key", "model"}`; a line
answers, `{"saw": ...}` or, where the client raised, `{"raised": ...}` in the client's own words.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SHORT = 16
"""Tokens of an answer that a case looks at."""
LONG = 3900
"""Tokens of an answer that a case leaves: some ten seconds of work."""
PROMPT = "Tell me about lists, please."


@dataclass(frozen=True, slots=True)
class Target:
    """Where a case asks, as whom, and for what."""

    url: str
    """Of the endpoint, without a path."""
    key: str
    model: str


Case = Callable[[Target], object]


def serve(cases: Mapping[str, Case]) -> None:
    """Answer until nobody asks any more. Clients that print do so on standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asyncio.Runner() as loop:  # one for all: some clients keep connections between calls
        for line in sys.stdin:
            asked = json.loads(line)
            case = cases[asked.pop("case")]
            answers.write(json.dumps(_answer(case, Target(**asked), loop)) + "\n")
            answers.flush()


def _answer(case: Case, target: Target, loop: asyncio.Runner) -> dict[str, object]:
    try:
        saw = case(target)
        if inspect.iscoroutine(saw):
            saw = loop.run(saw)
    except Exception as error:  # noqa: BLE001 - it is told, and a test judges it
        return {"raised": _told(error)}
    return {"saw": saw}


def _told(error: Exception) -> dict[str, object]:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    return {
        "types": [each.__name__ for each in type(error).__mro__],
        "status": getattr(error, "status_code", None),
        "code": getattr(error, "code", None),
        "message": str(error),
        "body": repr(getattr(error, "body", None)),
        "retry_after": headers.get("retry-after"),
    }
