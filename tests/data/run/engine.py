"""A stand-in for an engine: vLLM's surface as far as the run needs it, with one fault on demand.

engine.py serve MODEL --host H --port P [--dp N] [--role R] [--fault KIND] [--delay S]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("verb")
parser.add_argument("model")
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--dp", type=int, default=1)
parser.add_argument("--role", default="serve")
parser.add_argument("--fault", default="")
parser.add_argument("--delay", type=float, default=0.0)
parser.add_argument("--marker", default="")
parser.add_argument("--say", default="")
options = parser.parse_args()
lock = threading.Lock()
sources: dict[tuple[int, str], int] = {}
generated = [0] * options.dp
failures = {"kv_late": 2}
served = "other" if options.fault == "wrong_model" else options.model
started = time.monotonic()


def answer(prompt: str, count: int) -> str:
    return " ".join(hashlib.sha256(f"{prompt}{i}".encode()).hexdigest()[:6] for i in range(count))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        return

    def say(self, status: int, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            ready = options.fault != "never_ready" and time.monotonic() - started >= options.delay
            self.say(200 if ready else 503, "")
        elif self.path == "/v1/models":
            self.say(200, json.dumps({"data": [{"id": served}]}))
        else:
            lines = []
            for (rank, source), count in sources.items():
                labels = f'engine="{rank}",model_name="{served}",source="{source}"'
                lines.append(f"vllm:prompt_tokens_by_source_total{{{labels}}} {count}")
            for rank, count in enumerate(generated):
                lines.append(f'vllm:generation_tokens_total{{engine="{rank}"}} {count}')
            self.say(200, "\n".join(lines) + "\n", "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rank = int(self.headers.get("X-data-parallel-rank", "0"))
        if rank >= options.dp:
            self.say(400, json.dumps({"error": f"rank {rank} is out of range"}))
            return
        if options.fault == "dead_rank" and rank == options.dp - 1:
            self.say(500, json.dumps({"error": "engine core is dead"}))
            return
        params = body.get("kv_transfer_params") or {}
        source = "local_compute"
        if params.get("do_remote_prefill") and options.fault != "no_kv":
            late = options.fault == "kv_late" and failures["kv_late"] > 0
            failures["kv_late"] -= late
            source = "local_compute" if late else "external_kv_transfer"
        prompt = body["prompt"]
        with lock:
            sources[rank, source] = sources.get((rank, source), 0) + len(prompt.split())
            generated[rank] += body["max_tokens"]
        text = answer(prompt + ("x" if options.fault == "wrong_answer" else ""), body["max_tokens"])
        document = {"choices": [{"text": text}], "usage": {"completion_tokens": body["max_tokens"]}}
        if params.get("do_remote_decode"):
            document["kv_transfer_params"] = {"do_remote_prefill": True, "remote_host": options.host}
        self.say(200, json.dumps(document))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET


def exit_when_told() -> None:
    while not Path(options.marker).exists():
        time.sleep(0.05)
    os._exit(7)


def main() -> None:
    print(f"engine pid={os.getpid()} model={options.model} fault={options.fault}\n{options.say}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.fault == "exit_0":
        sys.exit(0)
    if options.fault == "error":
        print("ValueError: the model has no weights", file=sys.stderr, flush=True)
        sys.exit(3)
    if options.fault == "silent":
        time.sleep(1000)
    if options.fault == "taken_once" and not Path(options.marker).exists():
        Path(options.marker).touch()
        raise OSError(98, "Address already in use")
    if options.fault == "late_exit":
        threading.Thread(target=exit_when_told, daemon=True).start()
    Server((options.host, options.port), Handler).serve_forever()


main()
