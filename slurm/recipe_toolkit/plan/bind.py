"""A process of the plan, bound: every reference resolved. Standard library only; the agent imports this."""

from __future__ import annotations

from dataclasses import dataclass, field

from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.values import Bindings, resolve, resolve_words


@dataclass(frozen=True)
class BoundProcess:
    """What is executed. ``ports``: block name to its port numbers."""

    name: str
    argv: list[str]
    env: dict[str, str]
    ports: dict[str, list[int]]
    cleanup: list[str] = field(default_factory=list)
    inspect: list[str] = field(default_factory=list)


def bind_process(process: Process, bindings: Bindings) -> BoundProcess:
    """Resolve a process against what the agents said.

    Raises KeyError or IndexError if the bindings lack what the plan refers to.
    """
    held = bindings.ports.get(process.name, {})
    return BoundProcess(
        name=process.name,
        argv=resolve_words(process.argv, bindings, process.node),
        env={key: resolve(value, bindings, process.node) for key, value in process.env.items()},
        ports={name: list(range(held[name], held[name] + size)) for name, size in process.ports.items()},
        cleanup=resolve_words(process.cleanup, bindings, process.node),
        inspect=resolve_words(process.inspect, bindings, process.node),
    )
