"""Where srt-slurm's two formats keep what a recipe needs.

The first has the engine under ``backend`` and the sizes of the roles under ``resources``; the second
(``schema: 2``) has ``engine`` and a block for each of the ``roles``. Facts: srt-slurm's own
``docs/legacy-v1.md``, ``docs/schema-reference.md`` and ``backends/vllm.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipe_toolkit.faults import shown
from recipe_toolkit.importers.reader import Cursor

_V1_ROLES = {"prefill": ("prefill", "prefill"), "decode": ("decode", "decode"), "serve": ("agg", "aggregated")}


@dataclass(frozen=True)
class RoleShape:
    """One role, by the name that it has in a recipe."""

    name: str
    nodes: Cursor
    workers: Cursor
    gpus: Cursor
    args: Cursor
    env: Cursor


@dataclass(frozen=True)
class Shape:
    """``engine``: options of the engine as a whole. ``kind``: where its type stands. ``spread``: a worker a node."""

    version: int
    engine: Cursor
    kind: Cursor
    spread: Cursor
    roles: Sequence[RoleShape]

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.roles[0].name != "serve"


def find_shape(root: Cursor) -> Shape:
    """The shape of a document of either format."""
    for key in ("model", "resources", "benchmark", "frontend", "slurm"):
        root.at(key).items()
    return _second(root) if root.at("schema").value == 2 or root.at("engine").given else _first(root)


def _first(root: Cursor) -> Shape:
    backend, resources = root.at("backend"), root.at("resources")
    for section in (backend, backend.at("vllm_config")):
        section.items()
    apart = any(resources.at(f"{role}_{what}").given for role in ("prefill", "decode") for what in ("nodes", "workers"))
    if not apart and not resources.at("agg_nodes").given and not resources.at("agg_workers").given:
        apart = backend.at("vllm_config", "decode").given and not backend.at("vllm_config", "aggregated").given
    roles = [
        RoleShape(
            name,
            resources.at(f"{short}_nodes"),
            resources.at(f"{short}_workers"),
            resources.at(f"gpus_per_{short}"),
            backend.at("vllm_config", long),
            backend.at(f"{long}_environment"),
        )
        for name, (short, long) in _V1_ROLES.items()
        if apart == (name != "serve")
    ]
    return Shape(1, backend, backend.at("type"), resources.at("spread_workers"), roles)


def _second(root: Cursor) -> Shape:
    engine, blocks = root.at("engine"), root.at("roles")
    blocks.items()
    mapping = isinstance(engine.value, dict)
    if mapping:
        engine.items()
    kind = engine.at("type") if mapping else engine
    if not engine.given:
        kind = next((item.at("engine") for _, item in blocks.items() if item.at("engine").given), engine)
        if isinstance(kind.value, dict):
            kind = kind.at("type")
    apart = blocks.at("prefill").given or blocks.at("decode").given
    roles = []
    for name in ("prefill", "decode") if apart else ("serve",):
        block = blocks.at("agg" if name == "serve" else name)
        block.items()
        parts = (block.at(key) for key in ("nodes", "workers", "gpus", "args", "env"))
        roles.append(RoleShape(name, *parts))
    return Shape(
        2, engine if mapping else root.at("engine", "type"), kind, root.at("resources", "spread_workers"), roles
    )


_ENGINES = {
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "mocker": "Dynamo's mock engine",
    "atom": "ATOM",
    "tilert": "TileRT",
}


def refuse_other_engines(shape: Shape) -> None:
    """Note the problem where the recipe is not of vLLM; its flags would mean nothing here."""
    kind = shape.kind.value
    if kind == "vllm":
        shape.kind.use()
    elif kind is None:
        shape.kind.problem("no engine is named: it is not known to be vLLM's")
    elif isinstance(kind, str) and kind in _ENGINES:
        shape.kind.problem(f"a recipe of {_ENGINES[kind]}; the toolkit serves with vLLM, whose flags are others")
    else:
        shape.kind.problem(f"{shown(kind)} is no engine that can be imported: vllm")
