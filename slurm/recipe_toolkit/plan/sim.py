"""The simulated engine: vLLM's own command line behind another head."""

from __future__ import annotations

from dataclasses import replace

from recipe_toolkit.plan.flags import document
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import PackagePath, Python, Value
from recipe_toolkit.recipe import Recipe, Role

TOKENIZER = PackagePath("sim/tokenizer")
# Meant for the environment or the image of vLLM; the simulated engine lives in the agent's.
_OF_VLLM = frozenset({"LD_PRELOAD", "PYTHONHOME", "PYTHONPATH"})


def simulated(recipe: Recipe, role: Role, process: Process) -> Process:
    """The process of vLLM as one of the simulated engine.

    It is told what it is by RECIPE_INSTANCE and RECIPE_RANK, because a fault may be one process's alone.
    """
    head: tuple[Value, ...] = (Python(), "-m", "recipe_toolkit.sim")
    options = {**recipe.engine.sim, **role.sim}
    tail = ("--sim", document(options)) if options else ()
    identity = {"RECIPE_INSTANCE": str(process.instance), "RECIPE_RANK": str(process.rank)}
    env = {key: value for key, value in process.env.items() if key not in _OF_VLLM}
    return replace(process, argv=(*head, *process.argv[1:], *tail), env={**env, **identity})
