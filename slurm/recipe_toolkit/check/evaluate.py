"""The nodes' facts against what must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from recipe_toolkit.check.catalog import REACH
from recipe_toolkit.check.facts import Node
from recipe_toolkit.check.model import Check, Finding, Outcome, Report, Skip, Status, Unknown
from recipe_toolkit.plan.expect import Expect

Failed = dict[str, set[tuple[str, str]]]  # id to (node, interface or "")


def evaluate(
    expect: Expect, nodes: Sequence[Node], checks: Iterable[Check], lost: Mapping[str, str] | None = None
) -> Report:
    """The report on these nodes. ``lost``: node to why it did not answer.

    What could not be told is ``unknown`` and no pass; a failure that another explains is ``unknown`` and names it.
    """
    lost = lost or {}
    failed: Failed = {}
    outcomes = []
    for check in checks:
        if check.id in expect.skip:
            outcomes.append(Outcome(check, "skipped", reason="the profile leaves it out"))
        elif not check.applies(expect):
            outcomes.append(Outcome(check, "skipped", reason="nothing here asks for it"))
        elif check is REACH:
            outcomes.append(_reached(lost))
        elif not nodes:
            outcomes.append(Outcome(check, "skipped", reason="no node has answered"))
        else:
            outcomes.append(_judged(check, expect, nodes, failed))
    return Report((*(node.name for node in nodes), *lost), tuple(outcomes))


def _reached(lost: Mapping[str, str]) -> Outcome:
    findings = tuple(Finding((name,), why, "an answer") for name, why in lost.items())
    return Outcome(REACH, "failed" if lost else "passed", findings)


def _judged(check: Check, expect: Expect, nodes: Sequence[Node], failed: Failed) -> Outcome:
    findings: list[Finding] = []
    skipped: list[str] = []
    parts = [[node] for node in nodes] if check.node else [list(nodes)]
    for part in parts:
        try:
            findings += _findings(check, expect, part)
        except Unknown as error:
            at = (error.node,) if error.node else tuple(node.name for node in part)
            findings.append(Finding(at, str(error), status="unknown"))
        except Skip as error:
            skipped.append(str(error))
    told = tuple(_explained(check, finding, failed) for finding in findings)
    for finding in told:
        if finding.status == "failed":
            failed.setdefault(check.id, set()).update((node, finding.about) for node in finding.nodes)
    if len(skipped) == len(parts):
        return Outcome(check, "skipped", reason=skipped[0])
    return Outcome(check, _status(told), told)


def _findings(check: Check, expect: Expect, part: list[Node]) -> Iterator[Finding]:
    if check.node is not None:
        yield from check.node(expect, part[0])
    elif check.fleet is not None:
        yield from check.fleet(expect, part)


def _status(findings: Sequence[Finding]) -> Status:
    states = {finding.status for finding in findings}
    return "failed" if "failed" in states else "unknown" if states else "passed"


def _explained(check: Check, finding: Finding, failed: Failed) -> Finding:
    """The finding, or that it follows from a failure on one of its nodes and its interface."""
    for cause in check.after:
        for node, about in failed.get(cause, ()):
            if node in finding.nodes and (not about or not finding.about or about == finding.about):
                return replace(finding, status="unknown", follows=cause)
    return finding
