"""A recipe and a profile to a plan: pure, and the same bytes for the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.plan import client, expect, flags, lm_eval, setup, sim, vllm
from recipe_toolkit.plan import router as routing
from recipe_toolkit.plan.container import housed, images
from recipe_toolkit.plan.model import Deadlines, Gpus, Instance, Plan, Process, Proof
from recipe_toolkit.plan.rehearsal import rehearsed
from recipe_toolkit.plan.topology import Placed, Placement, place
from recipe_toolkit.recipe import Published, Recipe

# vLLM's defaults; each block of the KV cache holds so many tokens.
_BLOCK = {"gpu": 16, "cpu": 128}


def build_plan(recipe: Recipe, cluster: Cluster, *, rehearse: bool = False) -> Plan:
    """Decide what runs where. ``rehearse``: with the simulated engine in place of the recipe's.

    Raises InputError with what this profile cannot give or the recipe may not say; the problems name
    fields, not lines (``LoadedRecipe.place`` knows those).
    """
    if rehearse:
        recipe = rehearsed(recipe)
    placement = place(recipe.roles, recipe.resources)
    problems = [*_site_problems(recipe, cluster, placement), *_flag_problems(recipe)]
    if not rehearse:
        problems += setup.problems(recipe, cluster)
    if problems:
        raise InputError(problems)
    instances: list[Instance] = []
    engines: list[Process] = []
    for placed in placement.instances:
        instances.append(vllm.instance(placed))
        for process in vllm.processes(recipe, cluster, placement, placed):
            engines.append(_engine(recipe, cluster, placement, placed, process, bool(recipe.setup) and not rehearse))
    processes = list(engines)
    if routing.is_needed(recipe, engines):
        if recipe.router.kind == "none":
            message = "there is more than one place to send requests to"
            raise InputError([Problem("recipe", 0, 0, "router.kind", message, "kind: vllm-router")])
        processes.append(routing.router(recipe, cluster, engines))
    entry = processes[-1] if len(processes) > len(engines) else next(item for item in engines if item.api)
    points = tuple(client.points(recipe, cluster, entry))
    wanted_images = images(cluster.container, [*processes, *(point.process for point in points)])
    return Plan(
        name=recipe.name,
        engine=recipe.engine.kind,
        engine_version=recipe.engine.version,
        served_name=recipe.model.served_name,
        device=recipe.resources.device,
        gpu=recipe.resources.gpu,
        gpus_per_node=recipe.resources.gpus_per_node,
        time_limit_s=recipe.time_limit_s,
        nodes=placement.nodes,
        instances=tuple(instances),
        processes=tuple(processes),
        benchmarks=points,
        entry=entry.name,
        proof=_proof(recipe),
        deadlines=Deadlines(**{key.removesuffix("_s"): value for key, value in vars(recipe.deadlines).items()}),
        gpus=_gpus(recipe, placement),
        slo={key: value for key, value in vars(recipe.slo).items() if value is not None},
        published=tuple(_said(item) for item in recipe.published),
        interface=cluster.interface,
        metrics_targets=cluster.metrics_targets,
        rehearsal=rehearse,
        images=wanted_images,
        setup=setup.steps(recipe),
        check=expect.of_recipe(recipe, cluster, engines, wanted_images).to_json(),
    )


def _engine(
    recipe: Recipe, cluster: Cluster, placement: Placement, placed: Placed, process: Process, prepared: bool
) -> Process:
    """The process where the profile runs the engine: on the node, or in a container; there after the setup steps."""
    where = sim.engine_runner(recipe, cluster)
    if recipe.engine.kind == "sim":
        process, needs = sim.simulated(recipe, cluster, placed.role, process), sim.NEEDS
    else:
        process = replace(process, argv=(where.head, *process.argv[1:]))
        needs = vllm.needs(recipe, cluster, placement)
    if prepared:
        process, needs = setup.prepared(process), replace(needs, root=True)
    return housed(process, where, cluster.container, needs)


def _site_problems(recipe: Recipe, cluster: Cluster, placement: Placement) -> Iterator[Problem]:
    count, most = len(placement.nodes), cluster.max_nodes
    if cluster.scheduler == "ssh":
        most = min(most or len(cluster.ssh.hosts), len(cluster.ssh.hosts))
    if most is not None and count > most:
        message = f"needs {count} nodes, and the profile {cluster.name} has at most {most}"
        hint = "fewer or smaller instances, or resources.share_nodes: true"
        yield Problem("recipe", 0, 0, "roles", message, hint)
    limit = cluster.slurm.max_time_s
    if limit is not None and recipe.time_limit_s > limit:
        message = f"{recipe.time_limit_s} s are more than the {limit} s that the profile {cluster.name} allows"
        yield Problem("recipe", 0, 0, "time_limit", message)


def _flag_problems(recipe: Recipe) -> Iterator[Problem]:
    yield from flags.refuse(recipe.router.args, routing.RESERVED, "router.args")
    for index, benchmark in enumerate(recipe.benchmarks):
        yield from flags.refuse(benchmark.args, client.RESERVED.get(benchmark.client, {}), f"benchmarks.{index}.args")
        if benchmark.client == "lm-eval":
            yield from lm_eval.refuse(benchmark, f"benchmarks.{index}.args")


def _gpus(recipe: Recipe, placement: Placement) -> Gpus:
    by_role = {role.name: role.instances * role.parallel.size for role in recipe.roles}
    return Gpus(
        allocated=len(placement.nodes) * recipe.resources.gpus_per_node,
        working=sum(by_role.values()),
        by_role=by_role,
    )


def _said(item: Published) -> dict[str, Any]:
    return {key: value for key, value in vars(item).items() if value is not None and value != {}}


def _proof(recipe: Recipe) -> Proof:
    """A prompt of half as much again as a block, and some more: a word is a token or several.

    The example connector finds KV by a hash of the prompt's tokens (``example_connector.py``): its
    prefill hands no parameters on.
    """
    default = _BLOCK[recipe.resources.device]
    blocks = [vllm.effective_args(recipe, role).get("block-size") for role in recipe.roles]
    block = max(size if isinstance(size, int) else default for size in blocks)
    kv = recipe.kv_transfer
    return Proof(
        kind="kv_transfer" if recipe.disaggregated else "generate",
        prompt_words=block + block // 2 + 16,
        two_step=kv is None or kv.connector != "example",
    )
