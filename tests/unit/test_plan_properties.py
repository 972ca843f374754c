"""Whatever the loader accepts can be placed, and every placement keeps the same promises."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plankit import bindings
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.feasibility import check_recipe
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.model import plan_from_json
from recipe_toolkit.plan.topology import place
from recipe_toolkit.recipe import Benchmark, Engine, KvTransfer, Model, Parallel, Recipe, Resources, Role

CLUSTER = Cluster(name="any", scheduler="slurm", runs="/runs", models={"m": "/models/m"})
BENCHMARK = Benchmark(client="aiperf", name="b", isl=64, osl=8, concurrency=(1, 2), requests_per_concurrency=2)
SIZES = st.sampled_from([1, 1, 2, 2, 3, 4, 6, 8, 16])


@st.composite
def parallels(draw) -> Parallel:
    tp, pp, dp = draw(SIZES), draw(st.sampled_from([1, 1, 1, 2, 4])), draw(SIZES)
    lb = draw(st.sampled_from(["internal", "internal", "hybrid"]))
    return Parallel(tp=tp, pp=pp, dp=dp, ep=draw(st.booleans()), dp_lb=lb)


@st.composite
def recipes(draw) -> Recipe:
    names = draw(st.sampled_from([("serve",), ("prefill", "decode")]))
    most = st.sampled_from([None, None, 1, 2])
    roles = tuple(
        Role(name, draw(st.integers(1, 6)), draw(parallels()), instances_per_node=draw(most)) for name in names
    )
    assume(sum(role.instances * role.parallel.size for role in roles) <= 200)
    kv = None
    if len(names) == 2:
        kv = KvTransfer(draw(st.sampled_from(["nixl", "nixl", "example"])))
    recipe = Recipe(
        name="r",
        model=Model("m", "m"),
        engine=Engine(draw(st.sampled_from(["vllm", "sim"])), "0.32.0"),
        resources=Resources(
            "G",
            draw(st.sampled_from([1, 2, 3, 4, 6, 8])),
            device=draw(st.sampled_from(["gpu", "gpu", "cpu"])),
            share_nodes=draw(st.booleans()),
        ),
        roles=roles,
        kv_transfer=kv,
        benchmarks=(BENCHMARK,),
    )
    assume(not any(fault.refuses for fault in check_recipe(recipe)))
    return recipe


def engines(plan):
    return [process for process in plan.processes if process.role in ("serve", "prefill", "decode")]


def members(plan, instance):
    return [plan.process(name) for name in instance.processes]


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_gpus_and_instances(recipe):
    plan = build_plan(recipe, CLUSTER)
    held = Counter((process.node, slot) for process in engines(plan) for slot in process.gpus)
    assert set(held.values()) == {1}, "a GPU belongs to one process"
    assert all(node < len(plan.nodes) and slot < plan.gpus_per_node for node, slot in held)
    assert [sum(1 for node, _ in held if node == item.index) for item in plan.nodes] == [n.gpus for n in plan.nodes]
    wanted = [(role.name, index) for role in recipe.roles for index in range(role.instances)]
    assert [(item.role, item.index) for item in plan.instances] == wanted
    assert [name for item in plan.instances for name in item.processes] == [process.name for process in engines(plan)]
    for instance in plan.instances:
        own = members(plan, instance)
        assert sum(len(process.gpus) for process in own) == instance.size
        assert len({len(process.gpus) for process in own}) == 1, "every part is as large as the others"
        assert [process.rank for process in own] == list(range(len(own)))
        first = own[0].node
        assert [process.node for process in own] == list(range(first, first + len(own))), "nodes follow one another"
        if len(own) == 1:
            assert instance.size <= plan.gpus_per_node
        else:
            others = [process for process in engines(plan) if process.name not in instance.processes]
            shared = {process.node for process in others} & {process.node for process in own}
            assert not shared, "an instance of several nodes has them whole"
        for process in own:
            assert list(process.gpus) == list(range(process.gpus[0], process.gpus[-1] + 1))
    if not recipe.resources.share_nodes:
        for node in plan.nodes:
            assert len({process.role for process in engines(plan) if process.node == node.index}) == 1


@settings(max_examples=100, deadline=None)
@given(recipes())
def test_instances_of_a_node(recipe):
    """A node holds no more of a role than the role allows, and without such bounds a role takes no more nodes.

    (Roles that share nodes are placed first come, first served: a bound of one may leave better room for the other.)
    """
    placement = place(recipe.roles, recipe.resources)
    held = Counter((placed.role.name, part.node) for placed in placement.instances for part in placed.parts)
    for role in recipe.roles:
        if role.instances_per_node:
            assert max(count for (name, _), count in held.items() if name == role.name) <= role.instances_per_node
    free = [dataclasses.replace(role, instances_per_node=None) for role in recipe.roles]
    if recipe.resources.share_nodes:
        return
    assert len(place(free, recipe.resources).nodes) <= len(placement.nodes)


@settings(max_examples=100, deadline=None)
@given(recipes())
def test_ranks(recipe):
    plan = build_plan(recipe, CLUSTER)
    for instance in plan.instances:
        own = members(plan, instance)
        ranks = [rank for process in own for rank in process.dp_ranks]
        assert ranks == list(range(instance.dp)), "DP ranks are a partition, in order"
        assert own[0].api
        assert own[0].dp_ranks[:1] == (0,)
        if instance.lb == "hybrid":
            assert all(process.api and process.dp_ranks for process in own)
        else:
            assert not any(process.api for process in own[1:])
        for process in own:
            assert process.api == (process.ready is not None) == ("http" in process.ports)
            assert ("--headless" in process.argv) == (not process.api)


@settings(max_examples=100, deadline=None)
@given(recipes())
def test_visible_gpus(recipe):
    plan = build_plan(recipe, CLUSTER)
    for process in engines(plan):
        assert process.visible[: len(process.gpus)] == process.gpus
        assert len(set(process.visible)) == len(process.visible)
        there = [other for other in engines(plan) if other.node == process.node]
        if {other.role for other in there} == {"prefill", "decode"} and recipe.kv_transfer.connector == "nixl":
            assert set(process.visible) == {slot for other in there for slot in other.gpus}
        else:
            assert process.visible == process.gpus


@settings(max_examples=100, deadline=None)
@given(recipes())
def test_ports(recipe):
    plan = build_plan(recipe, CLUSTER)
    names = [process.name for process in plan.processes]
    assert len(set(names)) == len(names)
    found = bindings(plan)
    bound = {process.name: bind_process(process, found) for process in plan.processes}
    taken = Counter(
        (process.node, port)
        for process in plan.processes
        for ports in bound[process.name].ports.values()
        for port in ports
    )
    assert set(taken.values()) <= {1}
    for process in engines(plan):
        mine = bound[process.name]
        if process.api:
            assert mine.argv[mine.argv.index("--port") + 1] == str(mine.ports["http"][0])
        side = mine.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT")
        # vLLM listens on this number plus its global DP rank.
        assert mine.ports.get("nixl", []) == [int(side) + rank for rank in process.dp_ranks if side]
        head = next(item for item in plan.instances if process.name in item.processes).processes[0]
        for flag, block in (("--master-port", "master"), ("--data-parallel-rpc-port", "dp_rpc")):
            if flag in mine.argv:
                assert mine.argv[mine.argv.index(flag) + 1] == str(bound[head].ports[block][0])


@settings(max_examples=50, deadline=None)
@given(recipes())
def test_same_bytes_there_and_back(recipe):
    plan = build_plan(recipe, CLUSTER)
    text = json.dumps(plan.to_json())
    assert json.dumps(build_plan(recipe, CLUSTER).to_json()) == text
    assert plan_from_json(json.loads(text)) == plan


@settings(max_examples=50, deadline=None)
@given(recipes())
def test_entry_and_clients(recipe):
    plan = build_plan(recipe, CLUSTER)
    apis = [process for process in engines(plan) if process.api]
    assert (plan.entry == "router") == (len(apis) > 1 or recipe.disaggregated)
    assert plan.gpus.working == sum(item.size for item in plan.instances) == sum(plan.gpus.by_role.values())
    assert plan.gpus.allocated == len(plan.nodes) * plan.gpus_per_node
    ids = [point.id for point in plan.benchmarks]
    assert ids == ["b-c1", "b-c2"]
    found = bindings(plan)
    entry = plan.process(plan.entry)
    address = f"http://{found.nodes[entry.node].address}:{found.ports[entry.name]['http']}"
    for point in plan.benchmarks:
        argv = bind_process(point.process, found).argv
        assert argv[argv.index("--url") + 1] == address
    if plan.entry == "router":
        argv = bind_process(entry, found).argv
        urls = [word for word in argv if word.startswith("http://")]
        assert urls == [f"http://{found.nodes[p.node].address}:{found.ports[p.name]['http']}" for p in apis]


def test_seeds_differ_between_points():
    recipe = Recipe(
        "r",
        Model("m", "m"),
        Engine("sim", "0.32.0"),
        Resources("G", 1),
        (Role("serve", 1, Parallel()),),
        (BENCHMARK, Benchmark("aiperf", "c", 64, 8, request_rate=(1.0, 2.5), requests=4, seed=3)),
    )
    plan = build_plan(recipe, CLUSTER)
    seeds = [p.process.argv[p.process.argv.index("--random-seed") + 1] for p in plan.benchmarks]
    assert [point.id for point in plan.benchmarks] == ["b-c1", "b-c2", "c-r1", "c-r2.5"]
    assert all(one != other for one, other in itertools.combinations(seeds, 2))
