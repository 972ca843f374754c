"""The simulated engine reads a plan's commands as the plan means them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.plan.bind import bind_process
from recipe_toolkit.plan.build import build_plan
from recipe_toolkit.plan.values import Bindings, NodeBinding
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.sim import options
from recipe_toolkit.sim.flags import layout, parse

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny" / "sim-4p1d-24gpu.yaml"


@pytest.mark.parametrize(
    "parallel",
    [
        "{tp: 1, dp: 8, ep: true}",
        "{tp: 4, dp: 8, ep: true}",
        "{tp: 1, dp: 16, ep: true, dp_lb: hybrid}",
        "{tp: 16, dp: 2, ep: true}",
        "{tp: 8, pp: 2, dp: 1}",
    ],
)
def test_each_process_stands_where_the_plan_puts_it(parallel):
    recipe = load_recipe(RECIPE, [f"roles.decode.parallel={parallel}"]).recipe
    plan = build_plan(recipe, load_cluster("local").cluster)
    programs = {name: name for name in ("vllm-router", "aiperf")}
    nodes = tuple(
        NodeBinding(f"n{node.index}", f"10.0.0.{node.index}", "lo", "python", tuple("01234567"), programs)
        for node in plan.nodes
    )
    blocks = {
        process.name: {name: 20000 + 100 * number + 20 * place for place, name in enumerate(process.ports)}
        for number, process in enumerate(plan.processes)
    }
    bindings = Bindings("/run", nodes, blocks)
    decode = [process for process in plan.processes if process.role == "decode"]
    meeting = set()
    for process in decode:
        bound = bind_process(process, bindings)
        flags = parse(bound.argv[bound.argv.index("recipe_toolkit.sim") + 1 :])
        found = layout(flags)
        meeting.add(found.address)
        assert flags.ignored == ()
        assert (found.dp_ranks, found.api, found.head) == (process.dp_ranks, process.api, process.rank == 0)
        assert options.parse(flags.sim, bound.env)["tpot_base_ms"] == 8
        if process.dp_ranks:
            first = int(bound.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) + process.dp_ranks[0]
            assert first == blocks[process.name]["nixl"]
    assert len(meeting) == 1, "all processes of the instance meet at one place"
    assert [rank for process in decode for rank in process.dp_ranks] == list(range(recipe.roles[1].parallel.dp))
