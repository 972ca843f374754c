"""Checks, what they find, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from recipe_toolkit.check.facts import Node
    from recipe_toolkit.plan.expect import Expect

Scope = Literal["node", "pair", "fleet"]
Severity = Literal["error", "warning"]
Status = Literal["passed", "failed", "unknown", "skipped"]


class Unknown(Exception):
    """What a check needs could not be read; the message says why. ``node``: of which node, if of one."""

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


class Skip(Exception):
    """There is nothing to judge; the message says why."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it must be, on some nodes; or (``status`` unknown) what could not be told, and why.

    ``about``: the network interface, where it is one's. ``follows``: the check whose failure explains it.
    """

    nodes: tuple[str, ...]
    found: str
    wanted: str = ""
    about: str = ""
    status: Status = "failed"
    follows: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "nodes": list(self.nodes)}


Judge = Callable[["Expect", "Sequence[Node]"], Iterable[Finding]]
NodeJudge = Callable[["Expect", "Node"], Iterable[Finding]]
Applies = Callable[["Expect"], bool]


def always(_: Expect) -> bool:
    """For checks that every node must pass."""
    return True


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    ``id``: never changed, never given to another check. ``holds``: what must hold. ``breaks``: what
    happens otherwise. ``reads``: the evidence. ``sections``: of the probe. ``after``: checks whose failure on the
    same node and interface explains a failure of this one. ``bind``: judged inside jobs too: it needs neither root nor
    another node's word. ``deep``: only when asked for. ``node``, ``fleet``: the judge, for a node or for all.
    """

    id: str
    scope: Scope
    severity: Severity
    holds: str
    breaks: str
    reads: str
    remedy: str
    sections: tuple[str, ...]
    applies: Applies = always
    node: NodeJudge | None = None
    fleet: Judge | None = None
    after: tuple[str, ...] = ()
    bind: bool = False
    deep: bool = False
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--list --json``."""
        keys = ("id", "scope", "severity", "holds", "breaks", "reads", "remedy", "bind", "deep", "source")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Outcome:
    """What became of a check. ``reason``: why it was skipped."""

    check: Check
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        check = self.check
        return {
            "id": check.id,
            "scope": check.scope,
            "severity": check.severity,
            "status": self.status,
            "reason": self.reason or None,
            "findings": [finding.to_json() for finding in self.findings],
            **({"breaks": check.breaks, "remedy": check.remedy} if self.status in ("failed", "unknown") else {}),
        }


@dataclass(frozen=True)
class Report:
    """``ok``: at least one check has passed, and none failed or could not be told."""

    nodes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether the nodes are fit to serve, as far as was asked."""
        return self.count("passed") > 0 and self.count("failed") == self.count("unknown") == 0

    @property
    def failed(self) -> tuple[str, ...]:
        """The ids of what failed."""
        return tuple(outcome.check.id for outcome in self.outcomes if outcome.status == "failed")

    def to_json(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "schema": 1,
            "ok": self.ok,
            "nodes": list(self.nodes),
            "counts": {status: self.count(status) for status in ("passed", "failed", "unknown", "skipped")},
            "checks": [outcome.to_json() for outcome in self.outcomes],
        }
