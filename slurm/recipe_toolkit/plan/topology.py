"""Which instance stands on which nodes and GPUs.

Instances smaller than a node are packed, and none straddles two nodes. A larger one takes whole
nodes: of each, as many GPUs as make the same number of replicas everywhere. Prefill comes first,
then decode; instances of different roles share a node only where the recipe says so, and a role may say how many
of its instances one node takes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from recipe_toolkit.errors import InputError, Problem
from recipe_toolkit.feasibility.layout import local_replicas
from recipe_toolkit.plan.model import Node
from recipe_toolkit.recipe import Parallel, Resources, Role

_ORDER = ("serve", "prefill", "decode")


@dataclass(frozen=True)
class Part:
    """The GPUs of an instance on one node, by slot."""

    node: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """One instance with its place. ``local``: DP ranks of each part; 0 where a replica spans parts."""

    role: Role
    index: int
    parts: tuple[Part, ...]
    local: int


@dataclass(frozen=True)
class Placement:
    """All instances, and how many GPU slots each node holds for them."""

    instances: tuple[Placed, ...]
    nodes: tuple[Node, ...]

    @functools.cached_property
    def _by_node(self) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
        found: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
        for placed in self.instances:
            for part in placed.parts:
                found.setdefault(part.node, []).append((placed.role.name, part.slots))
        return found

    def slots(self, node: int, role: str | None = None) -> tuple[int, ...]:
        """The slots that are in use on a node, of one role or of all."""
        return tuple(slot for name, slots in self._by_node[node] if role in (None, name) for slot in slots)


@dataclass
class _Open:
    """A node that is being filled. ``role`` None: any role may join. ``held``: instances by role."""

    role: str | None
    used: int = 0
    closed: bool = False
    held: Counter[str] = field(default_factory=Counter)


def place(roles: Sequence[Role], resources: Resources) -> Placement:
    """Place every instance of every role, the same way each time.

    Raises InputError if an instance cannot be laid out on nodes of this size.
    """
    nodes: list[_Open] = []
    instances: list[Placed] = []
    for role in sorted(roles, key=lambda item: _ORDER.index(item.name)):
        per_node, local = spread(role, resources.gpus_per_node)
        count = role.parallel.size // per_node
        for index in range(role.instances):
            if count == 1:
                parts = [_pack(nodes, role, per_node, resources)]
            else:
                parts = [_whole(nodes, role.name, per_node) for _ in range(count)]
            instances.append(Placed(role, index, tuple(parts), local))
    return Placement(tuple(instances), tuple(Node(index, node.used) for index, node in enumerate(nodes)))


def spread(role: Role, gpus_per_node: int) -> tuple[int, int]:
    """GPUs that an instance takes of each of its nodes, and the DP ranks that are whole there.

    Raises InputError if its parts would differ from each other.
    """
    parallel = role.parallel
    local = local_replicas(parallel, gpus_per_node)
    if local is None:
        raise _refuse(role, "dp", f"dp {parallel.dp} cannot be spread evenly over nodes of {gpus_per_node} GPUs")
    if local:
        return local * parallel.replica, local
    if parallel.replica % gpus_per_node:
        message = f"a replica of {parallel.replica} GPUs does not fill whole nodes of {gpus_per_node}"
        raise _refuse(role, _factor(parallel), message)
    return gpus_per_node, 0


def _factor(parallel: Parallel) -> str:
    return "tp" if parallel.pp == 1 else "pp"


def _refuse(role: Role, key: str, message: str) -> InputError:
    return InputError([Problem("recipe", 0, 0, f"roles.{role.name}.parallel.{key}", message)])


def _pack(nodes: list[_Open], role: Role, size: int, resources: Resources) -> Part:
    index = next((index for index, node in enumerate(nodes) if _holds(node, role, size, resources)), len(nodes))
    if index == len(nodes):
        nodes.append(_Open(None if resources.share_nodes else role.name))
    nodes[index].held[role.name] += 1
    return _take(nodes[index], index, size)


def _holds(node: _Open, role: Role, size: int, resources: Resources) -> bool:
    """Whether the node takes one more instance of the role."""
    most = role.instances_per_node
    room = node.used + size <= resources.gpus_per_node and (most is None or node.held[role.name] < most)
    return room and not node.closed and node.role in (None, role.name)


def _whole(nodes: list[_Open], role: str, size: int) -> Part:
    nodes.append(_Open(role, closed=True))
    return _take(nodes[-1], len(nodes) - 1, size)


def _take(node: _Open, index: int, size: int) -> Part:
    slots = tuple(range(node.used, node.used + size))
    node.used += size
    return Part(index, slots)
