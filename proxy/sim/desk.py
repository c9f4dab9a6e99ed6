"""What an engine answers to a request, by path: a page at once, or a generation to be waited for.

The routes of SGLang 0.5.23 that clients and routers of a generating model use; everything else is
404. No I/O: `server.py` brings requests and carries answers away.
"""

from collections.abc import Callable, Mapping
from typing import Final

from proxy.core.words import UpstreamName
from proxy.sim import pages
from proxy.sim.asks import BodyError, Shape, openai_error, read, read_abort
from proxy.sim.clockwork import Clockwork
from proxy.sim.engine import Load
from proxy.sim.generation import Generation
from proxy.sim.options import PairOptions
from proxy.sim.wire import Answer, Request, json_answer

_MEDIA_TYPE: Final = "Unsupported Media Type: Only 'application/json' is allowed"

HAS: Final = (
    "chat, completions, /generate, the pages of models, server, load, metrics and health, "
    "/flush_cache and /abort_request; all else is 404"
)
"""What a simulated engine has, as the pages and `engines --help` say it, too."""
_NOT_FOUND: Final = f"Not Found: of what SGLang serves, a simulated engine has {HAS}"

_FLUSHED: Final = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED: Final = b"Flush cache failed.\n"


class Desk:
    """One engine as its clients see it."""

    def __init__(self, name: UpstreamName, options: PairOptions, clockwork: Clockwork) -> None:
        self.name = name
        self.options = options
        self.clockwork = clockwork
        self.port = options.ports[name]
        """Once it listens, the one that it has got."""
        self.tally = pages.Tally()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def load(self) -> Load:
        """What it is doing."""
        return self.clockwork.load(self.name)

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.clockwork.wall

    @property
    def card(self) -> pages.Card:
        """What it is."""
        return pages.Card(
            name=self.name,
            profile=self.options.profile,
            model=self.options.model,
            host=self.options.host,
            port=self.port,
            context_length=self.options.context_length,
        )

    def reset(self) -> None:
        """Forget everything, as a process does that dies."""
        self.clockwork.reset(self.name)
        self.tally = pages.Tally()

    def reply(self, request: Request) -> Answer | Generation:
        """The answer, or the generation that will become one.

        Raises:
            BodyError: the body asks for something impossible.
        """
        path = request.path
        methods = _methods(path)
        if methods is None:
            return json_answer({"detail": _NOT_FOUND}, 404)
        if request.method not in methods:
            return json_answer({"detail": "Method Not Allowed"}, 405, allow=", ".join(methods))
        if path in _GENERATION:
            return self._generation(_GENERATION[path], request)
        if path in _PAGES:
            return _PAGES[path](self)
        if path == _ABORT:
            return self._abort(bytes(request.body))
        return pages.model(self.card, path.removeprefix(_MODEL), self.now)

    def flush(self) -> Answer:
        """Empty the cache, of which there is none; SGLang does so only while it is idle.

        It does not wait for that, whatever `timeout` says.
        """
        load = self.load
        busy = load.running or load.waiting
        return Answer(400, _NOT_FLUSHED) if busy else Answer(200, _FLUSHED)

    def _abort(self, body: bytes) -> Answer:
        """End what the body names. SGLang says the same whether it knows the request or not."""
        asked = read_abort(body)
        if asked.abort_all or asked.rid:
            self.clockwork.end(self.name, None if asked.abort_all else asked.rid)
        return Answer(200)

    def _generation(self, shape: Shape, request: Request) -> Generation:
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            finding = {"loc": ["header", "content-type"], "msg": _MEDIA_TYPE, "type": "value_error"}
            message = f"1 validation error:\n  {finding} [{finding}]"
            raise BodyError(openai_error(message, "Bad Request", 400))
        card = self.card
        ask = read(shape, bytes(request.body), context_length=card.context_length)
        return Generation(ask, card.profile if card.speculative else None, self.now)


_MODEL: Final = "/v1/models/"
_ABORT: Final = "/abort_request"

_PAGES: Final[Mapping[str, Callable[[Desk], Answer]]] = {
    "/ready": lambda _: Answer(200),
    "/health": lambda _: Answer(200),
    "/health_generate": lambda _: Answer(200),
    "/ping": lambda _: Answer(200),
    "/flush_cache": Desk.flush,
    "/v1/models": lambda desk: pages.models(desk.card, desk.now),
    "/model_info": lambda desk: pages.model_info(desk.card),
    "/get_model_info": lambda desk: pages.model_info(desk.card),
    "/server_info": lambda desk: pages.server_info(desk.card, desk.load),
    "/get_server_info": lambda desk: pages.server_info(desk.card, desk.load),
    "/v1/loads": lambda desk: pages.loads(desk.card, desk.load, desk.now),
    "/metrics": lambda desk: pages.metrics(desk.card, desk.load, desk.tally),
}

_GENERATION: Final[Mapping[str, Shape]] = {
    "/v1/chat/completions": Shape.CHAT,
    "/v1/completions": Shape.COMPLETION,
    "/generate": Shape.GENERATE,
}


def _methods(path: str) -> tuple[str, ...] | None:
    """What a path takes; None for an unknown one."""
    shape = _GENERATION.get(path)
    if shape is not None:
        return ("POST", "PUT") if shape is Shape.GENERATE else ("POST",)
    if path == "/flush_cache":
        return ("GET", "POST")
    if path == _ABORT:
        return ("POST",)
    return ("GET",) if path in _PAGES or path.startswith(_MODEL) else None
