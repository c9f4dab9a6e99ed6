"""The rows of docs/clients.md: what each client is seen to do, and in front of which pair.

    @row("chat, streamed", OPENAI, OPENAI_NODE, simulated="why there is nothing to see there")
    def test_a_streamed_chat(stand: Stand, client: Client) -> None: ...

One test makes a row for each of its clients. No row is written down anywhere else.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])

HERE: Final = Path(__file__).resolve().parent


class PairKind(StrEnum):
    """What is behind specswitch: the columns of the table."""

    SIMULATED = "simulated"
    REAL = "real"


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and how it is run."""

    name: str
    package: str
    """Whose version the table shows: of the locks, `curl`, or `sglang`."""
    script: str = ""
    """Of `scripts/`, what speaks for it; empty where a test runs it itself."""


OPENAI: Final = Client("openai-python", "openai", "openai_sync.py")
OPENAI_ASYNC: Final = Client("openai-python, async", "openai", "openai_async.py")
OPENAI_NODE: Final = Client("openai-node", "node:openai", "openai_node.mjs")
ANTHROPIC: Final = Client("anthropic-python", "anthropic", "anthropic_sync.py")
OLLAMA: Final = Client("ollama-python", "ollama", "ollama_sync.py")
LANGCHAIN: Final = Client("LangChain, ChatOpenAI", "langchain-openai", "langchain_chat.py")
LITELLM: Final = Client("LiteLLM SDK", "litellm", "litellm_sdk.py")
CURL: Final = Client("curl", "curl")
BENCHMARK: Final = Client("sglang.benchmark.serving", "sglang", "vendor_benchmark.py")
SCHEMATHESIS: Final = Client("schemathesis, on the admin API", "schemathesis")

CLIENTS: Final = (
    OPENAI,
    OPENAI_ASYNC,
    OPENAI_NODE,
    ANTHROPIC,
    OLLAMA,
    LANGCHAIN,
    LITELLM,
    CURL,
    BENCHMARK,
    SCHEMATHESIS,
)
"""In the order of the page."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    client: Client
    what: str
    without: Mapping[PairKind, str]
    """Why there is nothing to see in front of a pair; without a reason there is a test."""

    @property
    def key(self) -> str:
        """Its name among results."""
        return f"{self.client.name}: {self.what}"


def row(what: str, *clients: Client, **without: str) -> Callable[[_Test], _Test]:
    """Make a test one row for each of *clients*, in front of each pair not named in *without*."""
    reasons = {PairKind(name): reason for name, reason in without.items()}
    kinds = [kind for kind in PairKind if kind not in reasons]

    def mark(test: _Test) -> _Test:
        for each in (
            pytest.mark.row(*(Row(client, what, reasons) for client in clients)),
            pytest.mark.parametrize("client", clients, ids=[each.name for each in clients]),
            pytest.mark.parametrize("stand", kinds, indirect=True, scope="session"),
        ):
            test = each(test)
        return test

    return mark


def rows() -> Iterator[Row]:
    """Every row there is, in the order of the tests; found without running one."""
    for path in sorted(HERE.glob("test_*.py")):
        for test in vars(import_module(f"tests.clients.{path.stem}")).values():
            for mark in getattr(test, "pytestmark", []):
                if mark.name == "row":
                    yield from mark.args
