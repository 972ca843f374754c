"""A small HTTP client with one deadline for the whole exchange."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class HttpError(Exception):
    """No answer: refused, reset, not HTTP, too large, or past the deadline; the message says which."""


@dataclass(frozen=True)
class Response:
    """An answer, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. Raises HttpError."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise HttpError(f"answer is not JSON: {self.text[:200]!r}") from error


async def get(url: str, timeout: float, headers: Mapping[str, str] | None = None) -> Response:
    """GET ``url`` within ``timeout`` seconds, connection included. Raises HttpError."""
    return await _bounded("GET", url, b"", timeout, dict(headers or {}))


async def post(url: str, document: Any, timeout: float, headers: Mapping[str, str] | None = None) -> Response:
    """POST ``document`` as JSON within ``timeout`` seconds. Raises HttpError."""
    body = json.dumps(document).encode()
    return await _bounded("POST", url, body, timeout, {"Content-Type": "application/json", **(headers or {})})


async def _bounded(method: str, url: str, body: bytes, timeout: float, headers: dict[str, str]) -> Response:
    host, port, path = _split(url)
    try:
        return await asyncio.wait_for(_exchange(method, host, port, path, body, headers), timeout)
    except asyncio.TimeoutError:
        raise HttpError(f"no answer from {url} within {timeout:g} s") from None
    except (OSError, EOFError, ValueError, http.client.HTTPException, asyncio.LimitOverrunError) as error:
        # asyncio words a refused connection its own way; the system's words are known.
        known = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else None
        reason = known or str(error) or type(error).__name__
        raise HttpError(f"{url}: {reason}") from error


def _split(url: str) -> tuple[str, int, str]:
    rest = url.removeprefix("http://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.rpartition(":")
    if rest == url or not host or not port.isdigit():
        raise HttpError(f"{url!r} is not http://HOST:PORT/PATH")
    return host.strip("[]"), int(port), slash + path or "/"


async def _exchange(method: str, host: str, port: int, path: str, body: bytes, headers: dict[str, str]) -> Response:
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_HEAD)
    try:
        fields = {"Host": f"{host}:{port}", "Connection": "close", "Accept": "*/*", **headers}
        if body or method == "POST":
            fields["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items())]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        headers_in = http.client.parse_headers(io.BytesIO(head.partition(b"\r\n")[2]))
        length = headers_in.get("Content-Length")
        rest = await _read(reader, int(length) if length is not None else None)
        return _parse(method, head + rest)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, length: int | None) -> bytes:
    if length is not None:
        if length > MAX_BODY:
            raise HttpError(f"an answer of {length} bytes is more than {MAX_BODY}")
        return await reader.readexactly(length)
    # No length: chunked, or until the end, since we asked for the connection to be closed.
    parts: list[bytes] = []
    size = 0
    while part := await reader.read(65536):
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise HttpError(f"an answer is more than {MAX_BODY} bytes")
    return b"".join(parts)


class _Bytes:
    """What http.client.HTTPResponse wants of a socket."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    def makefile(self, *_: object) -> io.BytesIO:
        return self.file


def _parse(method: str, raw: bytes) -> Response:
    response = http.client.HTTPResponse(cast(Any, _Bytes(raw)), method=method)
    response.begin()
    return Response(response.status, response.read())
