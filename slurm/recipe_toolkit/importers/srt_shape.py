"""Where srt-slurm's two formats keep what a recipe needs.

The first has the engine under ``backend`` and the sizes of the roles under ``resources``; the second
(``schema: 2``) has ``engine`` and a block for each of the ``roles``. Facts: srt-slurm's own
``docs/legacy-v1.md``, ``docs/schema-reference.md``, ``core/roles.py`` and ``backends/vllm.py``.
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
    """``engine``: options of the engine as a whole. ``kind``: where its type stands. ``spread``: a worker a node.

    ``layout``: 2 where each role has a block, else 1.
    """

    layout: int
    engine: Cursor
    kind: Cursor
    spread: Cursor
    roles: Sequence[RoleShape]

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are apart."""
        return self.roles[0].name != "serve"


def find_shape(root: Cursor) -> Shape:
    """The shape of a document of either format; ``schema: 2`` takes the first's sections too."""
    for key in ("model", "resources", "benchmark", "frontend", "slurm"):
        root.at(key).items()
    engine, kind = _engine(root)
    spread = root.at("resources", "spread_workers")
    if root.at("roles").given:
        return Shape(2, engine, kind, spread, _second(root.at("roles")))
    return Shape(1, engine, kind, spread, _first(root.at("resources"), engine))


def _engine(root: Cursor) -> tuple[Cursor, Cursor]:
    """Where the options of the engine stand, and where its type does."""
    engine, backend = root.at("engine"), root.at("backend")
    named = engine.given and not isinstance(engine.value, dict)
    options = engine if engine.given and not (named and backend.given) else backend
    if not (named and options is engine):
        options.items()
    kind = engine if named else engine.at("type") if engine.at("type").given else backend.at("type")
    if not kind.given:
        blocks = (item.at("engine") for _, item in root.at("roles").items() if item.at("engine").given)
        kind = next((item.at("type") if isinstance(item.value, dict) else item for item in blocks), kind)
    return options, kind


def _first(resources: Cursor, backend: Cursor) -> list[RoleShape]:
    backend.at("vllm_config").items()
    apart = any(resources.at(f"{role}_{what}").given for role in ("prefill", "decode") for what in ("nodes", "workers"))
    if not apart and not resources.at("agg_nodes").given and not resources.at("agg_workers").given:
        apart = backend.at("vllm_config", "decode").given and not backend.at("vllm_config", "aggregated").given
    return [
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


def _second(blocks: Cursor) -> list[RoleShape]:
    apart = blocks.at("prefill").given or blocks.at("decode").given
    roles = []
    for name in ("prefill", "decode") if apart else ("serve",):
        block = blocks.at("agg" if name == "serve" else name)
        block.items()
        parts = (block.at(key) for key in ("nodes", "workers", "gpus", "args", "env"))
        roles.append(RoleShape(name, *parts))
    return roles


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
