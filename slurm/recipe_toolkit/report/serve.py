"""A folder of runs over HTTP, on this machine alone: pages made as they are asked for, and the files of the runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.report.html import el

ADDRESS = "127.0.0.1"
# A browser on this machine may be told by any site to ask here; it then names that site as the host.
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_CHUNK = 256 * 1024
_TEXT = (".json", ".jsonl", ".log", ".yaml", ".yml", ".txt", ".csv", ".html", ".py", ".sh", ".md")
# Files of a run are of its client and its engines: a browser must not run any of it.
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}


@dataclass(frozen=True)
class Page:
    """A page to make. ``tag``: changes when its text would."""

    tag: str

    def text(self) -> str:
        """The page as HTML."""
        raise NotImplementedError


class Site(Protocol):
    """What is served."""

    def page(self, name: str) -> Page | None:
        """The page ``name``: empty for the list of runs, ``ID`` for a run, ``ID.html`` for a sweep; None: no such."""

    def folder(self, run: str) -> Path | None:
        """The folder of a run; None where there is none of that id."""

    def private(self, run: str, path: Path) -> bool:
        """Whether a file of a run is not to be shown."""


def server(site: Site, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1, bound and not yet started. ``port``: 0 for any. Raises RecipeError if it is taken."""
    handler = type("Handler", (_Handler,), {"site": site})
    try:
        return _Server((ADDRESS, port), handler)
    except OSError as error:
        raise RecipeError(
            f"cannot listen on {ADDRESS}:{port}: {error.strerror or error}", hint="another port: --port N, or 0 for any"
        ) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Browsers go away in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"
    server_version = "recipe"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer a request."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer the same without the body."""
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the user's."""

    def _answer(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            self._send(403, b"This server answers on 127.0.0.1 and localhost alone.\n")
            return
        parts = [unquote(part, errors="surrogateescape") for part in urlsplit(self.path).path.split("/")[1:]]
        if any(part in (".", "..") or "/" in part or "\0" in part for part in parts):
            self._send(404, b"There is no such page.\n")
            return
        try:
            self._route(parts)
        except RecipeError as error:
            self._send(500, f"{error.render()}\n".encode("utf-8", "backslashreplace"))

    def _route(self, parts: list[str]) -> None:
        run, rest = parts[0], parts[1:]
        if not rest:
            page = self.site.page(run)
            if page is not None and run and self.site.folder(run) is not None:
                self._send(302, b"", {"Location": f"/{quote(run, errors='surrogateescape')}/report.html"})
            else:
                self._page(page)
        elif rest == ["report.html"]:
            self._page(self.site.page(run))
        else:
            self._file(run, rest)

    def _page(self, page: Page | None) -> None:
        if page is None:
            self._send(404, b"There is no such page.\n")
            return
        headers = {"ETag": f'"{page.tag}"', "Content-Type": "text/html; charset=utf-8"}
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self._send(304, b"", headers)
        elif self.command == "HEAD":
            self._send(200, b"", headers)
        else:
            self._send(200, page.text().encode("utf-8", "backslashreplace"), headers)

    def _file(self, run: str, rest: list[str]) -> None:
        root = self.site.folder(run)
        if root is None:
            self._send(404, b"There is no such run.\n")
            return
        home = root.resolve()
        try:
            path = root.joinpath(*(part for part in rest if part)).resolve()
            inside = path.is_relative_to(home) and not self.site.private(run, home / path.relative_to(home))
            if inside and path.is_dir():
                self._listing(path, rest)
            elif inside and path.is_file():
                self._stream(path)
            else:
                self._send(404, b"There is no such file.\n")
        except (OSError, ValueError):
            self._send(404, b"The file cannot be read.\n")

    def _listing(self, path: Path, rest: list[str]) -> None:
        if rest[-1]:
            self._send(302, b"", {"Location": f"{urlsplit(self.path).path}/"})
            return
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in os.scandir(path))
        said = "/".join(rest)
        items = [el("li", el("a", name, href=f"./{quote(os.fsencode(name))}")) for name in names]
        head = el("head", el("meta", charset="utf-8"), el("title", said))
        body = f"<!doctype html>\n{el('html', head, el('body', el('h1', said), el('ul', *items)), lang='en')}\n"
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": "default-src 'none'"}
        self._send(200, body.encode("utf-8", "backslashreplace"), headers)

    def _stream(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            kind = "text/plain; charset=utf-8" if path.suffix in _TEXT else "application/octet-stream"
            self._head(200, size, {"Content-Type": kind, "Content-Security-Policy": "sandbox"})
            if self.command != "HEAD":
                # No more than was promised: logs grow meanwhile.
                self._copy(file, size)

    def _copy(self, file: Any, left: int) -> None:
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            self.wfile.write(chunk)
            left -= len(chunk)
        if left:
            self.close_connection = True

    def _send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        given = {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}
        self._head(code, None if self.command == "HEAD" and code == 200 else len(body), given)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, code: int, length: int | None, headers: dict[str, str]) -> None:
        self.send_response(code)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
