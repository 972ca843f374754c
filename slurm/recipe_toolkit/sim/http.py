"""An HTTP/1.1 server in one file: keep-alive, chunked streaming, and cancellation when the client goes.

:mod:`asyncio` protocols without streams, because a token of a stream must cost one ``send`` and no
task switch: the simulated engine shares two cores with the client that measures it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from recipe_toolkit.sim.log import log

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024


class BadRequest(Exception):
    """A request that cannot be read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Exchange:
    """One request and its response. ``path`` has no query; header names are in lower case."""

    def __init__(self, transport: asyncio.Transport, method: str, target: str, version: str) -> None:
        self.method = method
        self.path = target.partition("?")[0]
        self.headers: dict[str, str] = {}
        self.body = b""
        self.keep_alive = version != "HTTP/1.0"
        self.status = 0
        self._target = target
        self._transport = transport
        self._chunked = self.keep_alive

    def reply(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """Send a whole response."""
        self._start(status, {"content-type": content_type, "content-length": str(len(body))}, body)

    def reply_json(self, status: int, data: Any) -> None:
        """Send a whole response of JSON."""
        self.reply(status, json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())

    def start_stream(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """Send the head of a response whose length is not known."""
        self.keep_alive = self.keep_alive and self._chunked
        extra = {"transfer-encoding": "chunked"} if self._chunked else {}
        self._start(200, {"content-type": content_type, **extra}, b"")

    def write(self, data: bytes) -> None:
        """Send a part of a stream."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end_stream(self) -> None:
        """End a stream."""
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")

    def _start(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: recipe-toolkit-sim"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self.keep_alive:
            lines.append("connection: close")
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)

    @property
    def line(self) -> str:
        """The line of the access log, as uvicorn writes it."""
        host, port = (self._transport.get_extra_info("peername") or ("?", 0))[:2]
        phrase = HTTPStatus(self.status).phrase if self.status else ""
        return f'{host}:{port} - "{self.method} {self._target} HTTP/1.1" {self.status} {phrase}'


Handler = Callable[[Exchange], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client connection: its requests are answered one after the other."""

    def __init__(self, handler: Handler, access_log: bool, open_connections: set["Connection"]) -> None:
        self._handler = handler
        self._access_log = access_log
        self._open = open_connections
        self._buffer = bytearray()
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection, so that a shutdown can close it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request whose client has gone."""
        self._open.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Collect bytes until a request is whole."""
        self._buffer += data
        if self._task is None:
            self._next()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    def close(self) -> None:
        """Close the connection; a response under way is cut off."""
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        assert self._transport is not None
        try:
            exchange = self._read()
        except BadRequest as error:
            exchange = Exchange(self._transport, "?", "?", "HTTP/1.0")
            exchange.reply_json(error.status, {"detail": str(error)})
            self._transport.close()
            return
        if exchange is not None:
            self._exchange = None
            self._task = asyncio.get_running_loop().create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        assert self._transport is not None
        try:
            await self._handler(exchange)
        finally:
            if self._access_log:
                log(exchange.line)
        self._task = None
        if not exchange.keep_alive:
            self._transport.close()
        elif self._buffer and not self._transport.is_closing():
            self._next()

    def _read(self) -> Exchange | None:
        """Take a request out of the buffer if it is whole. Raises BadRequest."""
        if self._exchange is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    raise BadRequest(431, "the head of the request is too long")
                return None
            self._exchange = self._read_head(bytes(self._buffer[:end]).decode("latin-1"))
            del self._buffer[: end + 4]
        return self._exchange if self._read_body(self._exchange) else None

    def _read_head(self, head: str) -> Exchange:
        assert self._transport is not None
        first, *lines = head.split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise BadRequest(400, "the request line cannot be read")
        exchange = Exchange(self._transport, *parts)
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequest(400, "a header cannot be read")
            exchange.headers[name.strip().lower()] = value.strip()
        connection = exchange.headers.get("connection", "").lower()
        exchange.keep_alive = "close" not in connection and (exchange.keep_alive or "keep-alive" in connection)
        if exchange.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def _read_body(self, exchange: Exchange) -> bool:
        if "chunked" in exchange.headers.get("transfer-encoding", "").lower():
            return self._read_chunks(exchange)
        try:
            length = int(exchange.headers.get("content-length", "0"))
        except ValueError as error:
            raise BadRequest(400, "content-length is not a number") from error
        if not 0 <= length <= MAX_BODY:
            raise BadRequest(413, "the body is too long")
        if len(self._buffer) < length:
            return False
        exchange.body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return True

    def _read_chunks(self, exchange: Exchange) -> bool:
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(bytes(self._buffer[:end]).partition(b";")[0], 16)
            except ValueError as error:
                raise BadRequest(400, "a chunk cannot be read") from error
            if len(exchange.body) + size > MAX_BODY:
                raise BadRequest(413, "the body is too long")
            if len(self._buffer) < end + 2 + size + 2:
                return False
            exchange.body += bytes(self._buffer[end + 2 : end + 2 + size])
            del self._buffer[: end + 2 + size + 2]
            if size == 0:
                return True
