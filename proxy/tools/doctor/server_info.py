"""What one SGLang server says of itself: /server_info, /v1/models, /model_info, /v1/loads.

What it is by that is read in core/pages, as the proxy reads it. A server that lacks a path or a
field says nothing of it; only one that cannot be read at all is an error. No key is ever part of a
reading that is shown.
"""

import asyncio
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import httpx2

from proxy.core.fields import NOTHING, Fields
from proxy.core.identity import Identity
from proxy.core.pages import (
    adapters_of,
    context_length_of,
    draft_tokens_of,
    graph_ceiling_of,
    identity_of,
    max_running_of,
    ranks_of,
    total,
)
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.doctor.model_files import read_model_file

READ_SECONDS: Final = 10.0
"""For each path. /server_info goes through the scheduler, which may be in a long prefill."""

_MAX_BYTES: Final = 16 * 2**20
"""/server_info has 37 kB, and 20 kB more per data-parallel rank: room for hundreds of ranks."""
_OK: Final = 200
_ABSENT: Final = frozenset({404, 405})
_KEY: Final = frozenset({401, 403})
_SHORTEST_FLAG: Final = len("--mem-f")
_OURS: Final = "x-specswitch-upstream"


class Trouble(StrEnum):
    """Why a server could not be read."""

    UNREACHABLE = "unreachable"
    SILENT = "silent"
    KEY = "key"
    ANSWER = "answer"  # not what SGLang answers


class ReadError(SpecswitchError):
    """A server could not be read; the message says which and why, without a key."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """One server as it was read. Empty fields where it does not say."""

    name: UpstreamName
    url: str
    """Without user information."""
    known: bool
    """False for a server without /server_info."""
    arguments: Fields = NOTHING
    """/server_info: the arguments of its start as SGLang resolved them, and what came of them."""
    model_info: Fields = NOTHING
    cards: Sequence[Fields] = ()
    """The entries of /v1/models."""
    loads: Sequence[Fields] = ()
    """The ranks of /v1/loads."""
    generation: Fields | None = None
    """The model's generation_config.json; None where the model is not a folder of this machine."""
    draft: Fields | None = None
    """The draft's config.json, likewise."""
    is_specswitch: bool = False
    """Whether the answers come through a specswitch."""

    @property
    def ranks(self) -> Sequence[Fields]:
        """Its internal_states, one for each data-parallel rank."""
        return ranks_of(self.arguments)

    @property
    def algorithm(self) -> str | None:
        """How it speculates; None where it does not, or does not say."""
        return self.arguments.text("speculative_algorithm")

    @property
    def draft_tokens(self) -> int | None:
        """The most draft tokens of a round; adaptive speculation may draft more than it says."""
        return draft_tokens_of(self.arguments)

    @property
    def model(self) -> str | None:
        """Where its weights come from: a path, or a name on a hub."""
        return self.arguments.text("model_path") or self.model_info.text("model_path")

    @property
    def served_model(self) -> str | None:
        """The name that requests give."""
        served = self.arguments.text("served_model_name")
        return served or next((name for card in self.cards if (name := card.text("id"))), None)

    @property
    def context_length(self) -> int | None:
        """Tokens. By its card, else by its arguments."""
        return context_length_of(self.arguments, self.cards)

    @property
    def adapters(self) -> frozenset[str]:
        """Names of the loaded LoRA adapters."""
        return adapters_of(self.arguments, self.cards)

    @property
    def max_running(self) -> int | None:
        """Sequences that run at once over all ranks: memory may have cut what was asked for."""
        running = max_running_of(self.arguments)
        if running is not None:
            return running
        return total([rank.count("max_running_requests") for rank in self.loads])

    @property
    def graphs_off(self) -> bool:
        """Whether decoding runs without CUDA graphs although there is a GPU."""
        if self.on_cpu:
            return False
        arguments = self.arguments
        switches = ("disable_cuda_graph", "disable_decode_cuda_graph")
        if any(arguments.flag(switch) for switch in switches):
            return True
        return arguments.within("cuda_graph_config").within("decode").text("backend") == "disabled"

    @property
    def graph_ceiling(self) -> int | None:
        """The largest decode batch with a CUDA graph over all ranks; None where there is none."""
        return graph_ceiling_of(self.arguments)

    @property
    def on_cpu(self) -> bool:
        """Whether it computes on a CPU, where there are no CUDA graphs."""
        return self.arguments.text("device") == "cpu"

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit its KV cache, over all ranks."""
        rooms = [rank.within("memory_usage").count("token_capacity") for rank in self.ranks]
        known = total(rooms)
        return known if known is not None else self.arguments.count("max_total_num_tokens")

    @property
    def running(self) -> int | None:
        """Requests that it was decoding when it was read."""
        return total([rank.count("num_running_reqs") for rank in self.loads])

    @property
    def version(self) -> str | None:
        """SGLang's."""
        return self.arguments.text("version")

    @property
    def identity(self) -> Identity:
        """The same as the core takes it: what the proxy would check, and a calibration be for."""
        return identity_of(self.arguments if self.known else None, self.cards)

    def asked_for(self, flag: str) -> bool | None:
        """Whether `flag` was given at its start; None where the start cannot be seen whole."""
        words = self._launch()
        if words is None or "--config" in words:
            return None
        # Python's argparse takes any beginning that is not ambiguous: --mem-fraction.
        return any(len(word) >= _SHORTEST_FLAG and flag.startswith(word) for word in words)

    def _launch(self) -> frozenset[str] | None:
        """The flags of its command line; None where it is not shown, or is no command line."""
        command = self.arguments.text("launch_command")
        if command is None:
            return None
        try:
            words = shlex.split(command)
        except ValueError:
            return None
        if not words or not words[0].startswith("--"):
            return None  # started from Python, or something else than SGLang
        return frozenset(word.partition("=")[0] for word in words if word.startswith("--"))


async def read_server(name: UpstreamName, client: httpx2.AsyncClient) -> ServerInfo:
    """Read what the server says of itself. It generates nothing for that.

    Raises:
        ReadError: it is not there, refuses the key, or answers something else than SGLang does.
    """
    cards, ours = await _get_object(client, "/v1/models")
    info, _ = await _get_object(client, "/server_info", "/get_server_info")
    model_info = await _seek_object(client, "/model_info", "/get_model_info")
    loads = await _seek_object(client, "/v1/loads")
    arguments = info or NOTHING
    model = arguments.text("model_path") or model_info.text("model_path")
    return ServerInfo(
        name=name,
        url=place(client),
        known=info is not None,
        arguments=arguments,
        model_info=model_info,
        cards=(cards or NOTHING).many("data"),
        loads=loads.many("loads"),
        generation=read_model_file(model, "generation_config.json"),
        draft=read_model_file(arguments.text("speculative_draft_model_path"), "config.json"),
        is_specswitch=ours,
    )


def place(client: httpx2.AsyncClient) -> str:
    """The server's address as it may be shown: without user information."""
    return str(client.base_url.copy_with(username=None, password=None)).rstrip("/")


async def _get_object(client: httpx2.AsyncClient, *paths: str) -> tuple[Fields | None, bool]:
    """The JSON object at the first of `paths` that there is, and whether it is specswitch's."""
    for path in paths:
        where = f"{place(client)}{path}"
        status, body, ours = await _get(client, path)
        if status in _ABSENT:
            continue
        if status in _KEY:
            raise ReadError(Trouble.KEY, f"{where} answers {status}")
        if status != _OK:
            raise ReadError(Trouble.ANSWER, f"{where} answers {status}")
        return _object(body, where), ours
    return None, False


async def _seek_object(client: httpx2.AsyncClient, *paths: str) -> Fields:
    """The same of a page that a server may do without: an odd answer is none."""
    try:
        found, _ = await _get_object(client, *paths)
    except ReadError as error:
        if error.trouble is not Trouble.ANSWER:
            raise
        found = None
    return found or NOTHING


def _object(body: bytes, where: str) -> Fields:
    try:
        # The standard library's parser, because engines write NaN, which strict ones refuse whole.
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ReadError(Trouble.ANSWER, f"{where} does not answer JSON") from exc
    if not isinstance(value, dict):
        raise ReadError(Trouble.ANSWER, f"{where} does not answer a JSON object")
    return Fields(value)


async def _get(client: httpx2.AsyncClient, path: str) -> tuple[int, bytes, bool]:
    where = f"{place(client)}{path}"
    try:
        async with asyncio.timeout(READ_SECONDS), client.stream("GET", path) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > _MAX_BYTES:
                    raise ReadError(Trouble.ANSWER, f"{where} answers more than {_MAX_BYTES} bytes")
            return response.status_code, bytes(body), _OURS in response.headers
    except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.PoolTimeout) as exc:
        message = f"{where} did not answer within {READ_SECONDS:.0f} s"
        raise ReadError(Trouble.SILENT, message) from exc
    except (httpx2.RemoteProtocolError, httpx2.DecodingError) as exc:
        # The library quotes what came, which may be anything: also our own key, sent back.
        message = f"{where} does not answer HTTP ({type(exc).__name__})"
        raise ReadError(Trouble.ANSWER, message) from None
    except httpx2.HTTPError as exc:
        message = f"{where} could not be reached ({str(exc) or type(exc).__name__})"
        raise ReadError(Trouble.UNREACHABLE, message) from exc
