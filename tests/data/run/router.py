"""A stand-in for the router of prefill and decode: router.py HOST PORT PREFILL_URL DECODE_URL."""

from __future__ import annotations

import json
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port, prefill, decode = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def post(url: str, body: dict[str, object]) -> bytes:
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "x"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        return

    def say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.say(b"ok")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = json.loads(post(prefill, {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}))
        self.say(post(decode, {**body, "kv_transfer_params": first["kv_transfer_params"]}))


ThreadingHTTPServer((host, port), Handler).serve_forever()
