"""vLLM's command line, as far as the simulated engine needs it, and the ranks that follow from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ALIASES = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpl": "data-parallel-size-local",
    "-dpr": "data-parallel-start-rank",
    "-dpn": "data-parallel-rank",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dcp": "decode-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-r": "node-rank",
    "-sc": "speculative-config",
}
INTEGERS = {
    "port": 8000,
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "data-parallel-size": 1,
    "data-parallel-size-local": None,
    "data-parallel-start-rank": None,
    "data-parallel-rank": None,
    "data-parallel-rpc-port": 29550,
    "decode-context-parallel-size": 1,
    "nnodes": 1,
    "node-rank": 0,
    "master-port": 29501,
    "max-model-len": None,
    "max-num-seqs": 256,
    "block-size": 16,
    "shutdown-timeout": 0,
    "distributed-timeout-seconds": 600,
}
STRINGS = {"host": "0.0.0.0", "master-addr": "127.0.0.1", "data-parallel-address": None, "api-key": None}
DOCUMENTS = ("kv-transfer-config", "speculative-config")
BOOLEANS = {
    "headless": False,
    "data-parallel-hybrid-lb": False,
    "data-parallel-external-lb": False,
    "enable-expert-parallel": False,
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": False,
    "disable-uvicorn-access-log": False,
}
_NEGATIONS = {
    **{f"no-{name}": name for name in BOOLEANS},
    # vLLM 0.33 shows this spelling, and takes both.
    "disable-prefix-caching": "enable-prefix-caching",
}
# vLLM reads 8k as 8000 and 8K as 8192.
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")


class UsageError(ValueError):
    """The command line is refused; the process ends with 2, as vLLM does."""


@dataclass(frozen=True)
class Flags:
    """The flags that matter. ``ignored``: the others, as given. ``max-model-len`` None: as KV fits."""

    model: str
    served_names: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    sim: str = "{}"
    ignored: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def fitted(self, tokens: int) -> Flags:
        """With the longest request that a KV cache of ``tokens`` holds, where none is given (vLLM asks the model)."""
        if self.values["max-model-len"] is not None:
            return self
        block = self.values["block-size"]
        return replace(self, values={**self.values, "max-model-len": tokens // block * block})


@dataclass(frozen=True)
class Layout:
    """Where this process stands in its instance.

    ``dp_ranks``: the DP ranks whose schedulers live here. ``slices``: the DP ranks of which this
    process runs workers for a scheduler that lives elsewhere. ``peers``: how many processes the
    instance has; None where only the DP ranks are counted. ``address``: where rank 0 listens for
    the others (None: there are no others).
    """

    dp: int
    replica: int
    dp_ranks: tuple[int, ...]
    slices: tuple[int, ...] = ()
    head: bool = True
    api: bool = True
    hybrid: bool = False
    peers: int | None = 1
    address: tuple[str, int] | None = None

    def describe(self) -> str:
        """The layout in words."""
        part = f"DP ranks {list(self.dp_ranks)}" if self.dp_ranks else f"workers of DP ranks {list(self.slices)}"
        server = "with an API server" if self.api else "headless"
        return f"{part} of {self.dp}, {self.replica} GPUs a rank, {server}"


def parse(argv: Sequence[str]) -> Flags:
    """Read ``serve MODEL [flags]``. Raises UsageError."""
    if not argv or argv[0] != "serve":
        raise UsageError("usage: python -m recipe_toolkit.sim serve MODEL [vLLM's flags] [--sim JSON]")
    parser = _Parser(list(argv[1:]))
    while parser.words:
        parser.step()
    if parser.model is None:
        raise UsageError("no MODEL is given")
    return Flags(parser.model, parser.names or (parser.model,), parser.values, parser.sim, tuple(parser.ignored))


class _Parser:
    """Takes one argument and its values after the other off ``words``."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.values: dict[str, Any] = {**INTEGERS, **STRINGS, **BOOLEANS, **dict.fromkeys(DOCUMENTS)}
        self.model: str | None = None
        self.names: tuple[str, ...] = ()
        self.sim = "{}"
        self.ignored: list[str] = []

    def step(self) -> None:
        word = self.words.pop(0)
        if not word.startswith("-"):
            self._set_model(word)
            return
        flag, inline = _split(word)
        if flag in BOOLEANS:
            self.values[flag] = True
        elif flag in _NEGATIONS:
            self.values[_NEGATIONS[flag]] = False
        elif flag == "served-model-name":
            self.names = tuple(self._take(inline))
        elif flag in INTEGERS or flag in STRINGS or flag in DOCUMENTS:
            self.values[flag] = _value(flag, self._take_one(flag, inline))
        elif flag == "sim":
            self.sim = self._take_one(flag, inline)
        elif flag == "model":
            self._set_model(self._take_one(flag, inline))
        else:
            self.ignored.append(" ".join([f"--{flag}", *self._take(inline)]))

    def _set_model(self, model: str) -> None:
        if self.model is not None:
            raise UsageError(f"unrecognized arguments: {model}")
        self.model = model

    def _take(self, inline: str | None) -> list[str]:
        """The values of a flag: the one behind ``=``, or everything up to the next flag."""
        if inline is not None:
            return [inline]
        taken = []
        while self.words and (not self.words[0].startswith("-") or _NEGATIVE_NUMBER.fullmatch(self.words[0])):
            taken.append(self.words.pop(0))
        return taken

    def _take_one(self, flag: str, inline: str | None) -> str:
        if inline is not None:
            return inline
        # What follows is the value even if it begins with a dash, as a path may.
        if not self.words or self.words[0].startswith("--"):
            raise UsageError(f"argument --{flag}: expected one argument")
        return self.words.pop(0)


def _split(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    if name in ALIASES:
        name = f"--{ALIASES[name]}"
    return name.lstrip("-").replace("_", "-"), value if equals else None


def _value(flag: str, text: str) -> Any:
    if flag in STRINGS:
        return text
    if flag in DOCUMENTS:
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"argument --{flag}: {error}") from error
        if not isinstance(document, dict):
            raise UsageError(f"argument --{flag}: not a JSON object")
        return document
    if flag == "max-model-len" and text in ("auto", "-1"):
        return None
    number, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else (text, 1)
    try:
        return int(float(number) * factor) if factor > 1 else int(number)
    except ValueError as error:
        raise UsageError(f"argument --{flag}: invalid int value: {text!r}") from error


def layout(flags: Flags) -> Layout:
    """The ranks of this process, by vLLM's own rules. Raises ValueError where vLLM refuses to start.

    Source: vllm/engine/arg_utils.py (``create_engine_config``) and vllm/config/parallel.py of 0.32.
    """
    replica = flags["tensor-parallel-size"] * flags["pipeline-parallel-size"]
    dp = flags["data-parallel-size"]
    own_api = flags["data-parallel-hybrid-lb"] or flags["data-parallel-external-lb"]
    if own_api and flags["headless"]:
        raise ValueError("data_parallel_hybrid_lb is not applicable in headless mode")
    if flags["nnodes"] > 1:
        return _over_nodes(flags, dp, replica, own_api)
    external = flags["data-parallel-rank"]
    start = external if external is not None else flags["data-parallel-start-rank"]
    local = 1 if external is not None else flags["data-parallel-size-local"]
    local = dp if local is None else local
    own_api = own_api or external is not None or (start is not None and not flags["headless"])
    start = start or 0
    if start + local > dp:
        raise ValueError(f"data parallel ranks {start}..{start + local - 1} do not exist: the size is {dp}")
    address = flags["data-parallel-address"] or flags["master-addr"]
    return Layout(
        dp=dp,
        replica=replica,
        dp_ranks=tuple(range(start, start + local)),
        head=start == 0 and not flags["headless"],
        api=not flags["headless"],
        hybrid=own_api,
        peers=None,
        address=(address, flags["data-parallel-rpc-port"]) if local < dp else None,
    )


def _over_nodes(flags: Flags, dp: int, replica: int, own_api: bool) -> Layout:
    nodes, rank, world = flags["nnodes"], flags["node-rank"], dp * replica
    if not 0 <= rank < nodes:
        raise ValueError(f"node_rank {rank} must be at least 0 and less than nnodes {nodes}")
    if world % nodes:
        raise ValueError(f"the world size {world} is not divisible by nnodes {nodes}")
    if rank and not flags["headless"] and not own_api:
        raise ValueError(f"node_rank {rank} needs --headless: the API server is on node 0")
    local_world = world // nodes
    first = rank * local_world // replica
    local = max(local_world // replica, 1)
    within = nodes // max(dp // local, 1)
    leads = rank % within == 0
    ranks = tuple(range(first, first + local))
    return Layout(
        dp=dp,
        replica=replica,
        dp_ranks=ranks if leads else (),
        slices=() if leads else ranks,
        head=rank == 0,
        api=rank == 0 or own_api,
        hybrid=own_api,
        peers=nodes,
        address=(flags["master-addr"], flags["master-port"]),
    )
