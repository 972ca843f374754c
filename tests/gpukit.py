"""What the tests on GPUs share: cards, a profile for them, runs by ``recipe`` and the same commands by hand."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from recipe_toolkit.plan.bind import BoundProcess, bind_process
from recipe_toolkit.plan.model import Plan, plan_from_json
from recipe_toolkit.plan.values import Bindings, NodeBinding

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes" / "llama-8b-shape"
RECIPE = (sys.executable, "-c", "from recipe_toolkit.cli import main; main()")
READY_S = 400.0
FREE_MIB = 1024  # the driver's own on a card that nobody uses
# Neither lanes nor users are under test, and a machine that is lent has the limits that it has.
SKIP = [
    "LIMIT.NOFILE",
    "LIMIT.MEMLOCK",
    "OS.SAME",
    "DRIVER.HELD",
    "DRIVER.LOADED",
    "KERNEL.KHO",
    "GPU.FABRIC",
    "GDR.EXPECT",
]


def visible_cards() -> list[str]:
    """Indices of this machine's NVIDIA GPUs; none without nvidia-smi."""
    try:
        done = _smi("--query-gpu=index")
    except (OSError, subprocess.SubprocessError):
        return []
    return done.split()


def memory_used_mib(ids: tuple[str, ...]) -> list[int]:
    """MiB in use on each card, by NVML."""
    return [int(value) for value in _smi("--query-gpu=memory.used", f"--id={','.join(ids)}").split()]


def _smi(query: str, *more: str) -> str:
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits", *more]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


@dataclass
class Run:
    """A run that has ended."""

    code: int
    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        """results.json."""
        return json.loads((self.folder / "results.json").read_text())

    @property
    def state(self) -> dict[str, Any]:
        """state.json."""
        return json.loads((self.folder / "state.json").read_text())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a name."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def point(self, id: str) -> dict[str, Any]:
        """A point of the results, which is valid."""
        (point,) = [point for point in self.results["points"] if point["id"] == id]
        assert point["valid"], point["reasons"]
        return point


@dataclass
class Cards:
    """Cards of this host, and the programs to use on them."""

    ids: tuple[str, ...]
    programs: Mapping[str, str]
    folder: Path = Path()
    shapes: Path = Path()
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def prepare(self, folder: Path, shapes: Path) -> None:
        """Make the profile in ``folder``."""
        self.folder, self.shapes = folder, shapes
        self.started = []
        self.profile(bind=True)

    def profile(self, bind: bool) -> None:
        """Write the profile; without ``bind``, nodes are not checked before engines start."""
        tools = {name: {"path": path} for name, path in self.programs.items()}
        models = {
            name: str(self.shapes / name) for name in ("llama-8b-shape", "deepseek-v2-lite-shape", "qwen3-next-shape")
        }
        check = {"skip": SKIP} if bind else {"bind": False}
        data = {"schema": 1, "name": "gpus", "scheduler": "local", "runs": str(self.folder / "runs"), "tools": tools}
        self.site.write_text(yaml.safe_dump({**data, "models": models, "check": check}))

    @property
    def site(self) -> Path:
        """The profile."""
        return self.folder / "gpus.yaml"

    @property
    def env(self) -> dict[str, str]:
        """The environment in which these cards alone are there."""
        source = str(ROOT / "slurm")
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(self.ids), "PYTHONPATH": path}

    def shape(self, name: str) -> None:
        """Make the shape of a model."""
        folder = self.shapes / f"{name}-shape"
        if not (folder / "config.json").exists():
            subprocess.run([sys.executable, ROOT / "scripts" / "make-shape-model", name, folder], check=True)

    def recipe_file(self, name: str, base: str, **fields: Any) -> Path:
        """A recipe over one of the shipped ones."""
        path = self.folder / f"{name}.yaml"
        head = {"schema": 1, "name": name, "extends": str(RECIPES / base), "deadlines": {"ready": "8m"}}
        path.write_text(json.dumps({**head, **fields}))
        return path

    def recipe(self, *words: str | Path, timeout: float = 560) -> subprocess.CompletedProcess[str]:
        """``recipe`` as a user types it."""
        argv = [*RECIPE, *map(str, words)]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)

    def start(self, recipe: Path) -> subprocess.Popen[str]:
        """Submit in the background."""
        argv = [*RECIPE, "submit", str(recipe), "-c", str(self.site), "--wait", "--json"]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def submit(self, recipe: Path, code: int = 0) -> Run:
        """Submit, wait, and expect an exit code."""
        return self.wait(self.start(recipe), code)

    def wait(self, process: subprocess.Popen[str], code: int = 0) -> Run:
        """The run of a submission, when it has ended."""
        out, err = process.communicate(timeout=560)
        run = Run(process.returncode, Path(json.loads(out.splitlines()[0])["folder"])) if out else None
        if run is not None:
            _keep(run)
        assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
        assert run is not None
        return run

    def plan(self, recipe: Path) -> Plan:
        """What the toolkit would run."""
        done = self.recipe("plan", recipe, "-c", self.site, "--json")
        assert done.returncode == 0, done.stderr
        return plan_from_json(json.loads(done.stdout))

    def bindings(self, plan: Plan) -> Bindings:
        """Addresses, cards and ports, as an agent would give them."""
        ports = {p.name: {block: free_ports(size) for block, size in p.ports.items()} for p in plan.processes}
        node = NodeBinding("localhost", "127.0.0.1", "lo", sys.executable, self.ids, package=str(ROOT / "slurm"))
        return Bindings(str(self.folder / "by-hand"), (node,), ports)

    @contextlib.contextmanager
    def by_hand(self, plan: Plan, own: Mapping[str, str] | None = None) -> Iterator[tuple[Bindings, float]]:
        """The plan's processes started as a person would, without the toolkit: bindings, and seconds until ready.

        ``own``: process to the only card that it may see.
        """
        bindings = self.bindings(plan)
        began = time.monotonic()
        bound = [bind_process(process, bindings) for process in plan.processes]
        engines = [(p, b) for p, b in zip(plan.processes, bound, strict=True) if p.role != "router"]
        try:
            for _, process in engines:
                self._start(process, own or {})
            for process, _ in engines:
                _healthy(bindings.ports[process.name]["http"], self.started, began)
            for process, command in zip(plan.processes, bound, strict=True):
                if process.role == "router":
                    self._start(command, {})
                    _healthy(bindings.ports[process.name]["http"], self.started, began)
            yield bindings, time.monotonic() - began
        finally:
            self.stop_all()

    def _start(self, process: BoundProcess, visible: Mapping[str, str]) -> None:
        env = {**self.env, **process.env}
        if process.name in visible:
            env["CUDA_VISIBLE_DEVICES"] = visible[process.name]
        self._popen(process.argv, env, process.name)

    def _popen(self, argv: Sequence[str], env: Mapping[str, str], name: str) -> None:
        with (self.folder / f"by-hand-{name}.log").open("wb") as log:
            self.started.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True))

    def bench(self, plan: Plan, bindings: Bindings, point: str, port: int | None = None) -> dict[str, Any]:
        """The plan's client of a point by hand, against another port if one is given: what vllm bench wrote."""
        (process,) = [item.process for item in plan.benchmarks if item.id == point]
        argv = list(bind_process(process, bindings).argv)
        if port is not None:
            argv[argv.index("--base-url") + 1] = f"http://127.0.0.1:{port}"
        out = Path(argv[argv.index("--result-dir") + 1])
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run(argv, env=self.env, check=True, capture_output=True, timeout=300)
        return json.loads((out / argv[argv.index("--result-filename") + 1]).read_text())

    def router(self, url: str) -> int:
        """A router of its own in front of one engine: its port."""
        port = free_ports(1)
        argv = [self.programs["vllm-router"], "--host", "127.0.0.1", "--port", str(port), "--worker-urls", url]
        self._popen(argv, self.env, "router-in-front")
        _healthy(port, self.started, time.monotonic())
        return port

    def stop_all(self) -> None:
        """End what was started by hand, as Ctrl-C would, and then for good."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait(20)
        self.started = []
        self.wait_until_free()

    def wait_until_free(self) -> None:
        """The driver takes a moment to free what a process held. Raises AssertionError if it does not."""
        deadline = time.monotonic() + 15
        while max(used := memory_used_mib(self.ids)) > FREE_MIB:
            assert time.monotonic() < deadline, f"GPUs {self.ids} still hold {used} MiB"
            time.sleep(0.25)


def _keep(run: Run) -> None:
    """A copy in RECIPE_GPU_KEEP, for whoever wants to look at it later."""
    if folder := os.environ.get("RECIPE_GPU_KEEP"):
        archive = Path(folder) / f"{run.folder.name}.tar.gz"
        subprocess.run(["tar", "-czf", archive, "-C", run.folder.parent, run.folder.name], check=True)


@contextlib.contextmanager
def scraped(port: int, every_s: float) -> Iterator[list[int]]:
    """Read an engine's metrics every so many seconds meanwhile: bytes of each."""
    over, sizes = threading.Event(), []

    def read() -> None:
        while not over.wait(every_s):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                sizes.append(len(answer.read()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


_next_port = 20000 + os.getpid() % 5000


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nothing listens on, and that were not given out before."""
    global _next_port
    while _next_port < 32000:
        first, _next_port = _next_port, _next_port + count
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(contextlib.closing(_bound(port)))
            return first
    raise AssertionError("no free ports")


def _bound(port: int) -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", port))
    return found


def _healthy(port: int, processes: list[subprocess.Popen[bytes]], began: float) -> None:
    while time.monotonic() - began < READY_S:
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"ended before it was ready: {ended}"
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.25)
    raise AssertionError(f"nothing healthy on port {port} within {READY_S:g} s")
