"""A report as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from recipe_toolkit.check.model import Check, Finding, Outcome, Report

_FEW = 6
WORDS = {"passed": "ok", "failed": "FAILED", "unknown": "unknown", "skipped": "-"}


def rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """The table: id, what became of it, where, what must hold. Skipped checks are not in it."""
    yield ("check", "", "nodes", "what must hold")
    for outcome in report.outcomes:
        if outcome.status != "skipped":
            told = [finding for finding in outcome.findings if finding.status == outcome.status]
            where = names(dict.fromkeys(node for finding in told for node in finding.nodes)) if told else ""
            yield (outcome.check.id, WORDS[outcome.status], where or f"all {len(report.nodes)}", outcome.check.holds)


def names(nodes: Iterable[str]) -> str:
    """A few names, and how many more."""
    every = list(nodes)
    return ", ".join(every[:_FEW]) + (f" and {len(every) - _FEW} more" if len(every) > _FEW else "")


def paragraphs(report: Report) -> Iterator[str]:
    """A paragraph for each check that failed, then for each that could not be told."""
    for status in ("failed", "unknown"):
        yield from ("\n".join(_paragraph(item)) for item in report.outcomes if item.status == status)
    skipped = _skipped(report.outcomes)
    if skipped:
        yield "\n".join(f"skipped, {reason}: {', '.join(ids)}" for reason, ids in skipped.items())


def _paragraph(outcome: Outcome) -> Iterator[str]:
    check = outcome.check
    kind = {"failed": "warning" if check.severity == "warning" else "error"}.get(outcome.status, "unknown")
    yield f"{check.id} ({kind}): {check.holds}"
    for finding in sorted(outcome.findings, key=lambda item: item.status):
        yield f"  {names(finding.nodes)}: {said(finding)}"
    if outcome.status == "failed":
        yield f"  breaks: {check.breaks}"
    if not all(finding.follows for finding in outcome.findings):
        yield f"  mend:   {check.remedy}"


def said(finding: Finding) -> str:
    """What was found, what is wanted, or why it could not be told."""
    if finding.follows:
        return f"{finding.found}; follows from {finding.follows}"
    if finding.status == "unknown":
        return f"cannot be told: {finding.found}"
    return f"{finding.found}; wanted: {finding.wanted}"


def _skipped(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.status == "skipped":
            found.setdefault(outcome.reason, []).append(outcome.check.id)
    return found


def summary(report: Report) -> str:
    """One line."""
    counts = ", ".join(f"{report.count(status)} {status}" for status in ("passed", "failed", "unknown", "skipped"))
    nodes = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    return f"{'fit' if report.ok else 'not fit'}: {nodes}; checks: {counts}"


def listed(checks: Iterable[Check]) -> Iterator[tuple[str, str, str, str]]:
    """The table of ``--list``."""
    yield ("check", "scope", "severity", "what must hold")
    for check in checks:
        marks = "".join(f" [{word}]" for word, on in (("deep", check.deep), ("in jobs too", check.bind)) if on)
        yield (check.id, check.scope, check.severity, check.holds + marks)
