"""Recipes, profiles and made-up nodes for the tests of plans."""

from __future__ import annotations

from pathlib import Path

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.plan.values import Bindings, NodeBinding
from recipe_toolkit.recipe_loader import load_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "tests" / "data" / "recipes"
SHIPPED = sorted(path for path in (ROOT / "recipes").glob("*/*.yaml") if path.parent.name != "clusters")
CASES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
PROGRAMS = ("aiperf", "vllm", "vllm-router", "docker", "podman", "enroot", "apptainer", "srun", "squeue", "scancel")


def profile(name: str) -> Cluster:
    """A profile of tests/data/recipes/clusters."""
    return load_cluster(str(RECIPES / "clusters" / f"{name}.yaml")).cluster


def plan_of(name: str, *sets: str, rehearse: bool = False) -> Plan:
    """The plan of a recipe of tests/data/recipes: `docker` and `podman` with the profile of that name, others plain."""
    cluster = name if name in ("docker", "podman") else "plain"
    return plan_file(RECIPES / f"{name}.yaml", cluster, *sets, rehearse=rehearse)


def plan_file(path: Path, cluster: str, *sets: str, rehearse: bool = False) -> Plan:
    """The plan of any recipe."""
    return build_plan(load_recipe(path, sets).recipe, profile(cluster), rehearse=rehearse)


def bindings(plan: Plan, run_folder: str = "/runs/2026-01-02T03-04-05-test-abcd") -> Bindings:
    """What the agents would have said; blocks of a node follow one another without a gap."""
    nodes = tuple(
        NodeBinding(
            name=f"host{node.index}",
            address=f"10.0.0.{node.index + 1}",
            interface="ib0",
            python="/opt/toolkit/bin/python",
            devices=tuple(f"GPU-{node.index}-{slot}" for slot in range(plan.gpus_per_node)),
            programs={name: f"/usr/bin/{name}" for name in PROGRAMS},
            package="/opt/toolkit/recipe_toolkit",
            user="1000:100",
            folder=f"{run_folder}/attempts/0/nodes/{node.index:02d}",
            paths=frozenset({"/dev/infiniband"} if node.index == 0 else ()),
        )
        for node in plan.nodes
    )
    following = dict.fromkeys(range(len(nodes)), 15000)
    ports: dict[str, dict[str, int]] = {}
    for process in plan.processes:
        blocks = ports.setdefault(process.name, {})
        for name, size in process.ports.items():
            blocks[name] = following[process.node]
            following[process.node] += size
    return Bindings(run_folder, nodes, ports, job_id="7")
