"""The router in front of the instances: vllm-router 0.1.17.

``--intra-node-data-parallel-size`` is not used. It makes one worker of each DP rank by sending
``X-data-parallel-rank`` to the same URL, needs an API key, and holds for one size on all workers;
vLLM's own balancer behind each API server knows the queues that the router would have to guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan import flags
from recipe_toolkit.plan.container import housed
from recipe_toolkit.plan.model import Process, Ready
from recipe_toolkit.plan.tools import runner
from recipe_toolkit.plan.values import Address, Port, Value, url
from recipe_toolkit.recipe import Recipe

NAME = "router"
ENGINES = "engines"
_NODE = 0

_PLAN = "the plan sets it"
RESERVED = {
    **dict.fromkeys(("host", "port", "prometheus-host", "prometheus-port"), "each node reserves its own ports"),
    **dict.fromkeys(("prefill", "decode", "worker-urls", "vllm-pd-disaggregation"), _PLAN),
    "policy": "it stands in router.policy",
    "kv-connector": "it follows from kv_transfer",
    "mini-lb": "it sends both steps at once, without the KV's address",
    "service-discovery": "the plan knows every worker",
    "vllm-discovery-address": "the plan knows every worker",
    "intra-node-data-parallel-size": "vLLM balances over the DP ranks of an instance itself",
}


def is_needed(recipe: Recipe, engines: Sequence[Process]) -> bool:
    """Whether there is more than one place to send requests to."""
    return recipe.disaggregated or sum(process.api for process in engines) > 1


def router(recipe: Recipe, cluster: Cluster, engines: Sequence[Process]) -> Process:
    """The router's process, on the first node.

    It does not listen before all workers are healthy, and gives up after the ready deadline. Its
    ``/health`` answers 200 while each stage has a healthy worker.
    """
    where, program = Address(_NODE), runner(cluster, "vllm-router")
    words: list[Value] = [program.head, "--host", where, "--port", Port(NAME, "http")]
    words += ["--policy", recipe.router.policy]
    apis = [process for process in engines if process.api]
    if recipe.disaggregated:
        words.append("--vllm-pd-disaggregation")
        for process in apis:
            words += [f"--{process.role}", url(process.name, process.node)]
    else:
        words += ["--worker-urls", *(url(process.name, process.node) for process in apis)]
    words += ["--prometheus-host", where, "--prometheus-port", Port(NAME, "metrics")]
    # The engines are ready before it starts, but it looks only as often as it is told (default 30 s).
    words += ["--worker-startup-check-interval", "1"]
    words += ["--worker-startup-timeout-secs", str(int(recipe.deadlines.ready_s))]
    words += flags.render(recipe.router.args)
    process = Process(
        name=NAME,
        role=NAME,
        instance=0,
        rank=0,
        node=_NODE,
        argv=tuple(words),
        env={**cluster.env, **recipe.router.env},
        ports={"http": 1, "metrics": 1},
        ready=Ready("http", "/health"),
        after=(ENGINES,),
    )
    return housed(process, program, cluster.container)
