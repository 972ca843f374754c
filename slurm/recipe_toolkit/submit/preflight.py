"""The preflight of nodes that are asked from here: build, probe, parse, evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recipe_toolkit.check.build import ping_request, request
from recipe_toolkit.check.catalog import BY_ID
from recipe_toolkit.check.evaluate import evaluate
from recipe_toolkit.check.facts import Node
from recipe_toolkit.check.lanes import pings
from recipe_toolkit.check.model import Check, Report, Unknown
from recipe_toolkit.check.parse import parse
from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan.expect import Expect
from recipe_toolkit.submit import probing
from recipe_toolkit.submit.probing import Asked, Request, Target

JUMBO = BY_ID["LANE.JUMBO"]


def preflight(expect: Expect, targets: Sequence[Target], checks: Sequence[Check], *, deep: bool = False) -> Report:
    """Ask the nodes and judge them. A node that does not answer is reported, with the others."""

    def then(asked: Mapping[str, Asked]) -> dict[str, Request]:
        if not _wants_pings(expect, checks):
            return {}
        return {name: ping_request(wanted) for name, wanted in planned(expect, _nodes(asked)).items()}

    limit = probing.DEEP_S if deep else probing.ANSWER_S
    return _judged(expect, checks, probing.ask(targets, request(expect, checks, deep=deep), then, limit))


def preflight_slurm(expect: Expect, cluster: Cluster, nodes: int, checks: Sequence[Check], *, deep: bool) -> Report:
    """Ask as many nodes by one step of a job, and judge them. Raises SubmitError."""
    from recipe_toolkit.submit import probing_slurm

    asked = probing_slurm.ask(expect, cluster, nodes, checks, deep=deep, jumbo=_wants_pings(expect, checks))
    return _judged(expect, checks, asked)


def _wants_pings(expect: Expect, checks: Sequence[Check]) -> bool:
    return JUMBO in checks and JUMBO.id not in expect.skip and JUMBO.applies(expect)


def _judged(expect: Expect, checks: Sequence[Check], asked: Mapping[str, Asked]) -> Report:
    answered = {name: item for name, item in asked.items() if item.lost is None}
    lost = {name: item.lost for name, item in asked.items() if item.lost is not None}
    return evaluate(expect, _nodes(answered), checks, lost)


def planned(expect: Expect, nodes: Sequence[Node]) -> dict[str, list[dict[str, object]]]:
    """The pings of each node; none where the lanes are not known."""
    try:
        return pings(expect, nodes)
    except Unknown:
        return {}


def _nodes(asked: Mapping[str, Asked]) -> list[Node]:
    return [parse(name, item.answers, item.clock) for name, item in asked.items()]
