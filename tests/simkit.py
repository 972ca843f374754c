"""The simulated engine for tests: live processes on 127.0.0.1, and a clock that obeys."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
DEADLINE_S = 30.0
FAST = {
    "startup_s": 0,
    "ttft_base_ms": 1,
    "prefill_tokens_per_s": 1e6,
    "tpot_base_ms": 1,
    "tpot_per_seq_ms": 0,
    "kv_transfer_ms": 1,
}
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on and no test was given before, consecutive."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        ports = range(first, first + count)
        if first + count < 65536 and not _given.intersection(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return list(ports)
    raise RuntimeError(f"no {count} consecutive free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def until(what: str, true: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Poll until ``true()`` is, and return it."""
    end = time.monotonic() + deadline_s
    while not (found := true()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.02)
    return found


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events; the last of a whole stream is ``[DONE]``."""
        blocks = [block for block in self.body.decode().split("\n\n") if block]
        assert all(block.startswith("data: ") for block in blocks)
        return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


@dataclass
class Sim:
    """One simulated process. ``port`` is its API server's."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int
    calls: list[Any] = field(default_factory=list)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}, wait: float = 20
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=wait)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def complete(
        self, prompt: Any, max_tokens: int = 4, headers: Mapping[str, str] = {}, wait: float = 20, **more: Any
    ) -> Reply:
        """POST /v1/completions."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, **more}
        return self.call("POST", "/v1/completions", body, headers, wait)

    def healthy(self) -> bool:
        """Whether /health says 200."""
        try:
            return self.call("GET", "/health", wait=2).status == 200
        except OSError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        found = [
            value
            for sample, has, value in samples(self.call("GET", "/metrics").body.decode())
            if sample == name and all(has.get(key) == wanted for key, wanted in labels.items())
        ]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)

    def ready(self) -> "Sim":
        """Wait until it serves."""

        def up() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.healthy()

        until(f"port {self.port}", up)
        return self

    def says(self, text: str) -> None:
        """Wait until the log has ``text``."""
        until(f"{text!r} in the log", lambda: text in self.log.read_text())

    def ends(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the exit code."""
        return self.process.wait(deadline_s)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ends()


class Sims:
    """Starts processes, and kills at the end what is left of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Sim] = []

    def start(
        self,
        *flags: str,
        sim: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        model: str | None = "tiny",
    ) -> Sim:
        """Start ``serve tiny`` with these flags; times are short unless ``sim`` says otherwise."""
        port = free_ports(1)[0] if port is None else port
        log = self._folder / f"sim-{len(self._started)}.log"
        argv = [sys.executable, "-m", "recipe_toolkit.sim", "serve", *([model] if model else [])]
        argv += ["--host=127.0.0.1", f"--port={port}"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*argv, *flags, "--sim", json.dumps({**FAST, **(sim or {})})],
                stdout=file,
                stderr=file,
                env={**os.environ, **(env or {})},
            )
        self._started.append(Sim(process, log, port))
        return self._started[-1]

    def pair(
        self, *decode_flags: str, prefill: Any = None, decode: Any = None, policy: str = "fail"
    ) -> tuple[Sim, Sim]:
        """A prefill and a decode instance that know NIXL, ready."""
        made = []
        for role, flags, options in (("kv_producer", (), prefill), ("kv_consumer", decode_flags, decode)):
            config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy}
            env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_ports(4)[0])}
            made.append(self.start("--kv-transfer-config", json.dumps(config), *flags, sim=options, env=env))
        return made[0].ready(), made[1].ready()

    def close(self) -> None:
        """Kill what still runs."""
        for sim in self._started:
            if sim.process.poll() is None:
                sim.process.kill()
            sim.process.wait(DEADLINE_S)


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample of a Prometheus text."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels, _, value = rest.rpartition("} ")
            yield name, dict(_label(item) for item in labels.split(",")), float(value)


def _label(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key, value.strip('"')


def disaggregated(prefill: Sim, decode: Sim, prompt: Any, max_tokens: int, **more: Any) -> tuple[Reply, Reply]:
    """The two steps of a router: prefill for one token, decode with what it said."""
    first = prefill.complete(prompt, 1, kv_transfer_params=REMOTE_DECODE)
    params = first.json["kv_transfer_params"]
    return first, decode.complete(prompt, max_tokens, kv_transfer_params=params, **more)


class _Selector(selectors.SelectSelector):
    """Never waits: what would have been waited for is added to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds take no time, so that formulas can be held to the microsecond."""

    def __init__(self) -> None:
        self.virtual = _Selector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a virtual clock."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def words(count: int, seed: str = "a") -> str:
    """A prompt of ``count`` tokens."""
    return " ".join(f"{seed}{number}" for number in range(count))


def texts(replies: Sequence[Reply]) -> list[str]:
    """The text of each completion."""
    return [reply.json["choices"][0]["text"] for reply in replies]
