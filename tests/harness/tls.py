"""A raw client that speaks TLS itself, and so sees what a library hides: how a connection ended.

TLS marks its end with a message (close_notify). A library may take a connection that just ends for
one that was ended; here that is a ConnectionResetError, and `RawClient.response` calls the answer
incomplete.
"""

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Self

import trustme

from tests.harness.client import RawClient
from tests.harness.running import Rig, rig
from tests.harness.upstream import Step


class Identity:
    """A certificate for 127.0.0.1, in files, and a context that trusts it."""

    def __init__(self, folder: Path, name: str = "own") -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.cert = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self.ca = folder / f"{name}-ca.pem"
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.ca.write_bytes(authority.cert_pem.bytes())

    def context(self) -> ssl.SSLContext:
        """A client's context."""
        return ssl.create_default_context(cafile=self.ca)


class TlsClient(RawClient):
    """One connection by TLS; `reader` gives what was said, `writer` is the socket's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(asyncio.StreamReader(limit=1 << 26), writer)
        self._cipher = reader
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls: ssl.SSLObject
        self._pump: asyncio.Task[None] | None = None

    @classmethod
    async def shaken(
        cls, port: int, context: ssl.SSLContext, *, receive_bytes: int | None = None
    ) -> Self:
        """Connect to `port` on loopback and shake hands."""
        made = await cls.connect(port, receive_bytes=receive_bytes)
        made.tls = context.wrap_bio(made._incoming, made._outgoing, server_hostname="127.0.0.1")
        try:
            await made._shake()
        except BaseException:
            made.close()
            raise
        made._pump = asyncio.get_running_loop().create_task(made._read_on())
        return made

    async def _shake(self) -> None:
        async with asyncio.timeout(10):
            while True:
                try:
                    self.tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._flush()
                    data = await self._cipher.read(65536)
                    if not data:
                        raise ConnectionResetError("no handshake") from None
                    self._incoming.write(data)
                else:
                    self._flush()
                    return

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.writer.write(self._outgoing.read())

    def send(self, data: bytes) -> None:
        """Send bytes, encrypted."""
        self.tls.write(data)
        self._flush()

    def send_plainly(self, data: bytes) -> None:
        """Send bytes that are no TLS."""
        self.writer.write(data)

    def goodbye(self) -> None:
        """Send close_notify, and no FIN."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            self._flush()

    async def _read_on(self) -> None:
        """Decrypt what comes until it ends, and keep how."""
        try:
            while data := await self._cipher.read(65536):
                self._incoming.write(data)
                if not self._decrypt():
                    self.reader.feed_eof()
                    return
        except OSError as broken:
            self.reader.set_exception(ConnectionResetError(f"broke off: {broken}"))
        else:
            self.reader.set_exception(ConnectionResetError("it ended without close_notify"))

    def _decrypt(self) -> bool:
        """Read what there is; whether more may come."""
        try:
            while piece := self.tls.read(65536):
                self.reader.feed_data(piece)
        except ssl.SSLWantReadError:
            return True
        return False


def secured(identity: Identity, **settings: object) -> AbstractAsyncContextManager[Rig]:
    """A rig whose endpoint takes HTTPS."""
    files = {"listen__tls_cert": str(identity.cert), "listen__tls_key": str(identity.key)}
    return rig(spec=None, base=None, wait=True, **files, **settings)


async def shaken(it: Rig, identity: Identity, *, receive_bytes: int | None = None) -> TlsClient:
    """A client whose handshake is done."""
    client = await TlsClient.shaken(it.app.port, identity.context(), receive_bytes=receive_bytes)
    it.clients.append(client)
    return client


async def ask(it: Rig, identity: Identity, request: bytes, *steps: Step) -> TlsClient:
    """A client that has sent `request`, which spec answers by `steps`."""
    it.spec.script(*steps)
    client = await shaken(it, identity)
    client.send(request)
    return client
