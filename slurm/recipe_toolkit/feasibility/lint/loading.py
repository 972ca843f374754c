"""Limits on start-up against the weights that a node reads; and blocks of models of which nothing is known."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipe_toolkit.faults import Fault
from recipe_toolkit.feasibility.lint.hybrid import hybrid_pair
from recipe_toolkit.feasibility.lint.registry import Setting, Told, site_rule
from recipe_toolkit.feasibility.serving import effective_args
from recipe_toolkit.recipe import Role

RATE = 2e9
"""Bytes/s that a node reads of a good shared file system or of its own disk: slower ones are common."""

_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
_TIMEOUT_DEFAULT_S = 600.0
# vLLM's pull request 49612 takes blocks of two sizes for models with states; 0.32 has it.
_TAKES_BOTH = (0, 32)


def _loading(setting: Setting) -> Iterator[tuple[Role, float, str]]:
    """(role, seconds that reading its weights takes, in words) of roles that read weights that are known."""
    for role in setting.recipe.roles:
        size = setting.reads.get(role.name, 0.0)
        if size and effective_args(setting.recipe, role).get("load-format") != "dummy":
            took = size / RATE
            words = (
                f"a node of {role.name} reads {size / 1e9:,.0f} GB of weights: {_minutes(took)} at {RATE / 1e9:g} GB/s"
            )
            yield role, took, words


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _enough(seconds: float) -> int:
    """Twice as long, in whole ten minutes: compilation and graphs come after the weights."""
    return -(-int(2 * seconds) // 600) * 10


@site_rule(
    "ready-too-short",
    "warning",
    f"reading the weights alone takes longer than `deadlines.ready`, at {RATE / 1e9:g} GB/s a node",
    "The job ends when it is about to serve. A long limit costs nothing: what hangs is found by `deadlines.stall`.",
    do="`deadlines: {ready: 1h}`.",
)
def ready(setting: Setting) -> Iterator[Told]:
    """The phase's limit against the weights of the role that reads most."""
    loading = max(_loading(setting), key=lambda item: item[1], default=None)
    limit = setting.recipe.deadlines.ready_s
    if loading and loading[1] > limit:
        message = f"{loading[2]}, and ready allows {_minutes(limit)}"
        yield Told(Fault(("deadlines", "ready"), message, f"ready: {_enough(loading[1])}m or more"))


@site_rule(
    "engine-timeout-too-short",
    "warning",
    f"reading the weights alone takes longer than `{_TIMEOUT}` (600 s if unset), at {RATE / 1e9:g} GB/s a node",
    "vLLM's API server gives up on its engines and exits while they still load.",
    do='`VLLM_ENGINE_READY_TIMEOUT_S: "3600"` in `engine.env`.',
)
def engine_timeout(setting: Setting) -> Iterator[Told]:
    """vLLM's own limit on the start of its engine processes (vllm/envs.py)."""
    cluster = setting.cluster.env if setting.cluster else {}
    for role, took, words in _loading(setting):
        env = {**cluster, **setting.recipe.engine.env, **role.env}
        said = env.get(_TIMEOUT)
        limit = float(said) if said and re.fullmatch(r"\d+(\.\d+)?", said) else _TIMEOUT_DEFAULT_S
        if took > limit:
            holders = (("roles", role.name, "env"), role.env), (("engine", "env"), setting.recipe.engine.env)
            at = next((path for path, holder in holders if _TIMEOUT in holder), ("engine", "env"))
            message = f"{words}, and vLLM waits {limit:g} s for its engines"
            hint = f'{_TIMEOUT}: "{_enough(took) * 60}" in engine.env'
            yield Told(Fault((*at, _TIMEOUT), message, hint, key=True))
            return


@site_rule(
    "blocks-may-differ-on-hybrid",
    "warning",
    "prefill and decode of a hybrid model of which nothing is known have different `tp` and no common `block-size`, "
    "before vLLM 0.32",
    "vLLM makes a block as large as the state of a rank, which is half as large for twice the ranks: NIXL then refuses "
    "the handshake of every request, and decode computes every prompt anew.",
    do="`block-size: 2176` in `engine.args`, the larger of both: `recipe capacity --model DIR` counts them.",
)
def blocks_may_differ(setting: Setting) -> Iterator[Told]:
    """Where the model is known, its blocks are counted, and those that differ are refused."""
    pair, kv = hybrid_pair(setting.recipe), setting.recipe.kv_transfer
    if setting.reads or pair is None or kv is None or kv.connector != "nixl":
        return
    version = re.match(r"(\d+)\.(\d+)", setting.recipe.engine.version)
    one, other = (role.parallel.tp for role in pair)
    written = all("block-size" in effective_args(setting.recipe, role) for role in pair)
    if one == other or written or (version and (int(version[1]), int(version[2])) >= _TAKES_BOTH):
        return
    message = f"prefill has tp {one} and decode tp {other}, on a model with a state: their blocks may differ in size"
    hint = "the larger as block-size in engine.args; `recipe capacity --model DIR` counts them from config.json"
    yield Told(Fault(("roles", "decode", "parallel", "tp"), message, hint))
