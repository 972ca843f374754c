"""A language server over stdio, asked as an editor asks it: the part of LSP 3.17 that the tests need."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0


class LanguageServer:
    """A started and initialized server for one workspace folder; ended by ``close``."""

    def __init__(self, argv: Sequence[str], folder: Path, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._process = subprocess.Popen(
            argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._number = 0
        self._diagnostics: dict[str, list[dict[str, Any]]] = {}
        text = {
            "hover": {"contentFormat": ["markdown"]},
            "publishDiagnostics": {},
            "completion": {"completionItem": {}},
        }
        self.request(
            "initialize",
            {
                "processId": None,
                "rootUri": folder.as_uri(),
                "workspaceFolders": [{"uri": folder.as_uri(), "name": "here"}],
                "capabilities": {"textDocument": text, "workspace": {"configuration": True, "workspaceFolders": True}},
            },
        )
        self.notify("initialized", {})
        self.notify("workspace/didChangeConfiguration", {"settings": settings})

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            length = 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if not length:
                self._messages.put(None)
                return
            self._messages.put(json.loads(stream.read(length)))

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        """Tell the server something."""
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        """Ask the server; returns its result."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        end = time.monotonic() + DEADLINE_S
        while True:
            message = self._next(end, f"an answer to {method}")
            if message.get("id") == self._number and "method" not in message:
                assert "error" not in message, message
                return message.get("result")

    def _next(self, end: float, what: str) -> dict[str, Any]:
        """The next message; the server's own questions are answered on the way."""
        try:
            message = self._messages.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"the server did not send {what} in {DEADLINE_S:g} s") from None
        assert message is not None, f"the server ended without {what}"
        if message.get("method") == "workspace/configuration":
            items = message["params"]["items"]
            self._send({"id": message["id"], "result": [self._settings.get(item.get("section")) for item in items]})
        elif "method" in message and "id" in message:
            self._send({"id": message["id"], "result": None})
        elif message.get("method") == "textDocument/publishDiagnostics":
            self._diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        return message

    def open(self, path: Path, text: str) -> list[dict[str, Any]]:
        """Open a document; returns its diagnostics."""
        uri = path.as_uri()
        self._diagnostics.pop(uri, None)
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})
        end = time.monotonic() + DEADLINE_S
        while uri not in self._diagnostics:
            self._next(end, f"the diagnostics of {path.name}")
        return self._diagnostics[uri]

    def at(self, method: str, path: Path, line: int, character: int) -> Any:
        """Ask for something at a place of a document, counted from 0: ``completion``, ``hover``."""
        position = {"line": line, "character": character}
        return self.request(f"textDocument/{method}", {"textDocument": {"uri": path.as_uri()}, "position": position})

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
