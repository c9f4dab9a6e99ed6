"""The proxy that most people write first: a FastAPI route, httpx, a StreamingResponse.

Requests go to the two engines in turn. It runs in an environment of its own (bench/reliability/
peers.py), by uvicorn; the engines' addresses come in UPSTREAMS, with a comma between them.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

import httpx  # type: ignore[import-not-found]  # not one of our own dependencies
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
upstreams = cycle(os.environ["UPSTREAMS"].split(","))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all: without a limit, or at 100 connections the others wait."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=600) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/{path:path}")
async def relay(request: Request, path: str) -> StreamingResponse:
    """Send it on, and the answer back as it comes."""
    client = request.app.state.client
    dropped = {*HOP_BY_HOP, "host", "content-length"}
    headers = {name: value for name, value in request.headers.items() if name not in dropped}
    url = f"{next(upstreams)}/v1/{path}"
    asked = client.build_request("POST", url, headers=headers, content=await request.body())
    answer = await client.send(asked, stream=True)
    kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
    return StreamingResponse(pieces(answer), answer.status_code, kept)


async def pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """What the engine says."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
