"""A client in a process of its own, asked for one case at a time (scripts/serving.py)."""

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.clients import setup
from tests.clients.rows import BENCHMARK, HERE, OPENAI_NODE, Client
from tests.engines import launch
from tests.engines import setup as engines
from tests.harness.apart import ROOT

ANSWER_SECONDS: Final = 45.0
"""Below a test's own time, which would end the whole run."""
_ENVIRONMENT: Final = {
    "LANGSMITH_TRACING": "false",  # LangChain would tell its makers
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # LiteLLM would fetch a list of prices
    "NO_PROXY": "127.0.0.1",
    "PYTHONPATH": str(ROOT),
}


def _program(client: Client) -> tuple[Path, dict[str, str]]:
    """What runs its script, and the variables that this needs."""
    if client == OPENAI_NODE:
        return setup.NODE, {}
    if client == BENCHMARK:  # it imports all of SGLang, which then wants what a server wants
        return engines.PYTHON, {
            **launch.ENVIRONMENT,
            "PYTHONPATH": f"{launch.STUBS}{os.pathsep}{ROOT}",
        }
    return setup.PYTHON, {}


class ClientError(AssertionError):
    """A client raised where an answer was expected, or the other way round."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a client, in its own words."""

    types: tuple[str, ...]
    """Its class and all that it inherits from, by their names."""
    status: int | None
    code: str | None
    message: str
    body: str
    retry_after: str | None
    """The header, as the client hands it out."""


class Talker:
    """One process; it lives as long as the tests do."""

    def __init__(self, client: Client, logs: Path) -> None:
        self.client = client
        self._log = logs / f"{client.script}.log"
        self._rest = b""

    def __enter__(self) -> Self:
        program, environment = _program(self.client)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                [str(program), str(HERE / "scripts" / self.client.script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=setup.NODE_FOLDER,
                env={**os.environ, **_ENVIRONMENT, **environment},
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, case: str, *, url: str, key: str, model: str) -> None:
        """Begin a case; its answer is to be read before the next one."""
        assert self._process.stdin is not None
        asked = {"case": case, "url": url, "key": key, "model": model}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()

    def saw(self) -> Any:  # noqa: ANN401 - each case tells its own
        """What the client saw.

        Raises:
            ClientError: it raised.
        """
        told = json.loads(self._line())
        if "raised" in told:
            raise ClientError(f"{self.client.name} raised {told['raised']}")
        return told["saw"]

    def raised(self) -> Raised:
        """What the client raised.

        Raises:
            ClientError: it did not.
        """
        told = json.loads(self._line())
        if "saw" in told:
            raise ClientError(f"{self.client.name} raised nothing and saw {told['saw']}")
        types = tuple(told["raised"].pop("types"))
        return Raised(types=types, **told["raised"])

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([descriptor], [], [], left)[0]
            more = os.read(descriptor, 65536) if ready else b""
            if not more:
                why = "ended" if ready else f"said nothing for {ANSWER_SECONDS:.0f} s"
                raise ClientError(f"{self.client.name} {why}: {self._log.read_text()}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line
