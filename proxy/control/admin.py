"""The admin listener: does specswitch live, metrics, the state of the pair, the operator's word.

Reads are open and hold no secret (`state`); what changes something is guarded (`guard`). FastAPI
answers it and uvicorn serves it, inside the event loop that also carries the streams.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from proxy.control.decision_list import DecisionList
from proxy.control.decisions import Decisions
from proxy.control.guard import MAX_BODY_BYTES, FaultBody, Guard, fault
from proxy.control.history import History
from proxy.control.history_columns import HistoryColumns, columns
from proxy.control.metrics import Metrics
from proxy.control.page_files import PageFile, page_files
from proxy.control.patience import Connection
from proxy.control.state import Pair, State, Status
from proxy.core.words import AdminState, Control, UpstreamName
from proxy.errors import ConfigError

_CLOSE_SECONDS = 2
"""How long an admin request that is running may still take when we stop."""
_CUT_SECONDS = 0.5
"""And for how long we wait for it to notice that it has been cut."""
_LOOK_SECONDS = 0.002
"""How often it is looked whether all have left; uvicorn tells nobody when a connection ends."""
_DATE_SECONDS = 1.0
"""How often the Date of the answers is written anew."""
_CODES = {404: "not_found", 405: "method_not_allowed"}
_log = logging.getLogger(__name__)


class ControlChange(BaseModel):
    """The operator's override of the mode."""

    model_config = ConfigDict(extra="forbid")
    control: Control


class AdminStateChange(BaseModel):
    """The operator takes an upstream out, or puts it back."""

    model_config = ConfigDict(extra="forbid")
    admin_state: AdminState


class Reloaded(BaseModel):
    """The configuration was read again, and holds."""

    changed: list[str]
    """The keys whose values are others now."""


class Finding(BaseModel):
    """What is wrong with a configuration."""

    path: str
    """The key, or the file."""
    message: str


class Rejected(BaseModel):
    """Why a configuration was refused; nothing has changed."""

    errors: list[Finding]


Reload = Callable[[], Awaitable[Sequence[str]]]
"""Reads the configuration again; the keys that changed, or ConfigError."""


@dataclass(frozen=True, slots=True)
class Past:
    """What has happened lately: to requests, and to the pair."""

    decisions: Decisions
    history: History


def build_admin(
    pair: Pair,
    metrics: Metrics,
    *,
    reload: Reload,
    token: Callable[[], str | None],
    known_hosts: Iterable[str],
    past: Past,
) -> ASGIApp:
    """The admin application.

    `known_hosts` are `listen.admin_host` and `listen.admin_hosts`; IP literals and localhost are
    known anyway. `token` gives the one that changes need now, None for none.
    """
    app = FastAPI(
        title="specswitch",
        version=pair.facts.version,
        description="The admin listener of specswitch.",
        docs_url=None,  # these pages load scripts from elsewhere, into an origin that may change
        redoc_url=None,  #   things; /openapi.json is for the reader's own tools
        max_body_size=MAX_BODY_BYTES,  # of those that do not tell their length beforehand
        # Metrics and logs of our own say what happens here; an environment made for somebody
        # else's process must not send them anywhere.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    _add_reads(app, pair, metrics)
    _add_decisions(app, past.decisions)
    _add_history(app, past.history, pair)
    _add_page(app)
    _add_changes(app, pair, reload)
    app.add_exception_handler(HTTPException, _http_fault)
    app.add_exception_handler(RequestValidationError, _validation_fault)
    app.add_exception_handler(Exception, _unforeseen_fault)
    return Guard(app, token=token, known_hosts=known_hosts)


def _add_reads(app: FastAPI, pair: Pair, metrics: Metrics) -> None:
    # All of them are coroutines: a plain function would run in a thread, beside the dispatcher.
    @app.get("/livez")
    @app.head("/livez", include_in_schema=False)
    async def livez() -> Status:
        """The event loop runs."""
        return Status(status="ok")

    @app.get("/readyz", responses={503: {"model": Status}})
    @app.head("/readyz", include_in_schema=False)
    async def readyz(response: Response) -> Status:
        """At least one upstream is usable, and we are not draining."""
        status = pair.status()
        response.status_code = 200 if status.status == "ok" else 503
        return status

    @app.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Metrics for Prometheus."""
        body, content_type = metrics.render()
        return Response(body, headers={"content-type": content_type})

    @app.get("/admin/state")
    async def state() -> State:
        """The pair, now."""
        return pair.state()


def _add_decisions(app: FastAPI, kept: Decisions) -> None:
    @app.get("/admin/decisions", response_model=DecisionList)
    async def decisions() -> Response:
        """The last 1,000 decisions, newest first."""
        # Written here, because FastAPI would check each of them again, in the streams' own loop.
        return Response(kept.newest().model_dump_json(), media_type="application/json")


def _add_history(app: FastAPI, kept: History, pair: Pair) -> None:
    @app.get("/admin/history", response_model=HistoryColumns)
    async def history(after: Annotated[float, Query(allow_inf_nan=False)] = -1.0) -> Response:
        """The last 15 minutes, second by second; with `after`, what came later than that."""
        told = columns(kept, pair.facts.started, after)
        return Response(told.model_dump_json(), media_type="application/json")


def _add_page(app: FastAPI) -> None:
    for file in page_files():
        methods = ["GET", "HEAD"]
        app.add_api_route(file.path, _served(file), methods=methods, include_in_schema=False)


def _served(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        if file.is_known_to(request.headers.get("if-none-match")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers)

    return serve


def _add_changes(app: FastAPI, pair: Pair, reload: Reload) -> None:
    token = [Security(HTTPBearer(auto_error=False))]  # for the documentation; the guard asks
    refusals: dict[int | str, dict[str, object]] = {
        code: {"model": FaultBody} for code in (400, 401, 403, 413, 415, 422)
    }

    @app.put("/admin/control", dependencies=token, responses=refusals)
    async def control(change: ControlChange, request: Request) -> State:
        """Override the mode until told otherwise or restarted."""
        by = "admin" if request.client is None else f"admin ({request.client.host})"
        pair.set_control(change.control, by=by)
        return pair.state()

    @app.put("/admin/upstreams/{name}", dependencies=token, responses=refusals)
    async def upstream(name: UpstreamName, change: AdminStateChange) -> State:
        """Take an upstream out (drain; maint also stops its probes), or put it back."""
        pair.dispatcher.set_admin_state(name, change.admin_state, pair.clock())
        return pair.state()

    unusable: dict[int | str, dict[str, object]] = {**refusals, 422: {"model": Rejected}}

    @app.post("/admin/reload", dependencies=token, responses=unusable, response_model=Reloaded)
    async def reload_configuration() -> Reloaded | Response:
        """Read the configuration again: all of it holds from now on, or nothing has changed."""
        try:
            return Reloaded(changed=list(await reload()))
        except ConfigError as error:
            found = [Finding(path=path, message=message) for path, message in error.findings]
            return JSONResponse(Rejected(errors=found).model_dump(), status_code=422)


async def _http_fault(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    code = _CODES.get(error.status_code, "invalid_request")
    answer = fault(error.status_code, str(error.detail), code)
    answer.headers.update(error.headers or {})
    return answer


async def _validation_fault(request: Request, error: Exception) -> Response:
    """FastAPI's findings as one sentence, with the first field named."""
    del request
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    findings = [(_param(each["loc"]), str(each["msg"])) for each in error.errors()]
    message = "; ".join(f"{param}: {what}" if param else what for param, what in findings)
    return fault(422, message, "invalid_request", param=findings[0][0])


def _param(place: tuple[int | str, ...]) -> str | None:
    """The field that a finding is about; None where the body as a whole is."""
    names = [part for part in place[1:] if isinstance(part, str)]
    return ".".join(names) or None


async def _unforeseen_fault(request: Request, error: Exception) -> Response:
    """A fault of ours; starlette raises it again after this, and uvicorn logs it."""
    del request, error
    return fault(500, "specswitch failed to answer this; its log says why", "internal_error")


class AdminServer:
    """uvicorn inside the caller's event loop; signals stay the caller's."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.host = host
        self.port = port
        """The port that is listened on; after `start` never 0."""
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="off",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who set the control must not be what a header claims
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> "asyncio.Task[None]":
        """Listen, and return the task that serves; raises ConfigError without the address."""
        sockets = await _bind(self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        self._task = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=sockets), name="admin listener"
        )
        ready = asyncio.get_running_loop().create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()
        return self._task

    async def close(self) -> None:
        """Stop listening and end what is open; raises what the server ended with."""
        if self._task is not None:
            self._server.leave()
            await self._task


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it listens, leaves signals alone, and ends at once.

    uvicorn's own looks ten times a second whether it may end, and pauses for as long once it does.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def leave(self) -> None:
        """End, soon after this returns."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # 0: each time, as it writes the Date of the answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        running = self.server_state
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._until_left()
        except TimeoutError:
            _log.warning("cut %d admin connections that did not end", len(running.connections))
            for connection in tuple(running.connections):
                connection.transport.abort()
            await _ended(running.tasks, within=_CUT_SECONDS)  # most end when their client has gone
            for task in running.tasks:
                task.cancel()
            await _ended(running.tasks, within=_CUT_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    async def _until_left(self) -> None:
        """Until nothing is open: what is idle is closed, what runs when it has been answered."""
        running = self.server_state
        while running.connections or running.tasks:
            for connection in tuple(running.connections):  # also one accepted a moment ago
                connection.shutdown()
            await asyncio.sleep(_LOOK_SECONDS)


async def _ended(tasks: Iterable[asyncio.Task[None]], *, within: float) -> None:
    if waited := tuple(tasks):
        await asyncio.wait(waited, timeout=within)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of `host`; uvicorn would end the process on a failure."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise ConfigError([("listen.admin_host", f"{host} is no address: {exc}")]) from exc
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    # With a port chosen by the system each address would get another one.
    return _listen(addresses[:1] if port == 0 else addresses, port)


def _listen(addresses: Iterable[tuple[int, str]], port: int) -> list[socket.socket]:
    """A listening socket for each address, or none at all."""
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, address in dict.fromkeys(addresses):
            try:
                made = socket.create_server((address, port), family=family)
            except OSError as exc:
                what = f"{address} port {port}: {exc.strerror}"
                raise ConfigError([("listen.admin_port", what)]) from exc
            opened.callback(made.close)
            sockets.append(made)
        opened.pop_all()
    return sockets
