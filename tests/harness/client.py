"""A raw client: a socket that sends what a test wants, as it wants, and reads what comes."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Self, cast


@dataclass
class Response:
    """One response as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    """Without its chunks."""
    chunks: list[bytes]
    complete: bool
    """Whether its end was marked as HTTP marks it."""

    def header(self, name: str) -> str | None:
        """The first value of the header `name`, None without one."""
        return next((v for n, v in self.headers if n.lower() == name), None)

    def count(self, name: str) -> int:
        """How often the header `name` came."""
        return sum(n.lower() == name for n, _ in self.headers)

    @property
    def code(self) -> str:
        """The code of an error in OpenAI's shape."""
        code = json.loads(self.body)["error"]["code"]
        assert isinstance(code, str)
        return code


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int | None = None) -> Self:
        """Connect to `port` on loopback; `receive_bytes` is what the kernel may take unread."""
        raw = socket.socket()
        try:
            raw.setblocking(False)
            if receive_bytes is not None:  # before it connects: the window is agreed upon then
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
            return cls(*await asyncio.open_connection(sock=raw, limit=1 << 26))
        except BaseException:
            raw.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    def half_close(self) -> None:
        """Send FIN and go on reading."""
        self.writer.write_eof()

    def stop_reading(self) -> None:
        """Take no byte from the socket."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def read_on(self) -> None:
        """Take bytes again."""
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    def close(self) -> None:
        """Leave."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """Leave with a reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        """Read a response's status and headers."""
        async with asyncio.timeout(10):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = raw.split("\r\n")
        headers = [(n, v.strip()) for n, _, v in (each.partition(":") for each in rest if each)]
        return int(line.split(" ")[1]), headers

    async def chunk(self) -> bytes | None:
        """Read one HTTP chunk; None for the last, ConnectionError where it breaks off."""
        async with asyncio.timeout(10):
            try:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = await self.reader.readexactly(size + 2)
            except asyncio.IncompleteReadError as broken:
                raise ConnectionResetError("broke off") from broken
        return data[:-2] if size else None

    async def response(self, *, head_only: bool = False) -> Response:
        """Read one whole response, or as much of it as comes."""
        status, headers = await self.head()
        named = {n.lower(): v for n, v in headers}
        if head_only or status in {204, 304}:
            return Response(status, headers, b"", [], complete=True)
        if named.get("transfer-encoding") == "chunked":
            return await self._chunked(status, headers)
        if "content-length" in named:
            return await self._counted(status, headers, int(named["content-length"]))
        async with asyncio.timeout(10):
            try:
                body = await self.reader.read(-1)
            except ConnectionError:
                return Response(status, headers, b"", [], complete=False)
        return Response(status, headers, body, [], complete=True)

    async def at_end(self) -> bool:
        """Wait for the connection's end; whether nothing came before it."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def _chunked(self, status: int, headers: list[tuple[str, str]]) -> Response:
        chunks: list[bytes] = []
        try:
            while (piece := await self.chunk()) is not None:
                chunks.append(piece)
        except ConnectionError:
            return Response(status, headers, b"".join(chunks), chunks, complete=False)
        return Response(status, headers, b"".join(chunks), chunks, complete=True)

    async def _counted(self, status: int, headers: list[tuple[str, str]], length: int) -> Response:
        async with asyncio.timeout(10):
            try:
                body = await self.reader.readexactly(length)
            except asyncio.IncompleteReadError as broken:
                return Response(status, headers, broken.partial, [], complete=False)
        return Response(status, headers, body, [], complete=True)


def post(
    path: str, body: object, *, method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    """A request with a JSON body (bytes go as they are)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: test", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def get(path: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> bytes:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode()


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
CHAT_STREAM = {**CHAT, "stream": True}
