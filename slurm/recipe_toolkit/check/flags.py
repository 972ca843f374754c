"""Checks of the vLLM that is to run: its flags against the plan's commands, its version against the recipe's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.check.facts import Command, Node
from recipe_toolkit.check.model import Check, Finding, Skip, Unknown
from recipe_toolkit.plan.expect import Expect
from recipe_toolkit.vllm_args.gone import whereabouts
from recipe_toolkit.vllm_args.image import against_help, read_help
from recipe_toolkit.vllm_args.lists import ArgList, load, match
from recipe_toolkit.vllm_args.problem import ArgProblem

_VERSION = re.compile(r"\d+\.\d+\S*")
_RELEASE = re.compile(r"\d+\.\d+")


def _said(node: Node, what: str, where: str) -> Command:
    """What vLLM has printed. Raises Unknown where it could not be run."""
    told: Command = node.know("vllm")[what]
    if not told.ok:
        words = "--version" if what == "version" else "serve --help=all"
        lines = told.err.strip().splitlines()  # a traceback says it at its end
        raise Unknown(f"{where}: vllm {words}: {lines[-1][:300] if lines else told.why}", node.name)
    return told


def _version(node: Node, where: str) -> str:
    """Such as 0.32.0+cpu. Raises Unknown."""
    found = _VERSION.findall(_said(node, "version", where).out)
    if not found:
        raise Unknown(f"{where}: vllm --version prints no version", node.name)
    return str(found[-1])


def _flags(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    """A finding a role and flag, with all nodes that say the same."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        try:
            for key in dict.fromkeys(_lacking(expect.vllm, node)):
                found.setdefault(key, []).append(node.name)
        except Unknown as error:
            found.setdefault((str(error), "", "unknown"), []).append(node.name)
    for (said, wanted, status), names in found.items():
        yield Finding(tuple(names), said, wanted, status="failed" if status == "failed" else "unknown")


def _lacking(asked: Mapping[str, Any], node: Node) -> Iterator[tuple[str, str, str]]:
    try:
        shown = read_help(_said(node, "help", asked["where"]).out)
    except ValueError as error:
        raise Unknown(f"{asked['where']}: {error}", node.name) from error
    try:
        version = _version(node, asked["where"])
    except Unknown:
        version = ""
    for role, commands in asked["commands"].items():
        for words in commands:
            for problem in against_help(words, shown, asked["version"]):
                said = f"{role}: {asked['where']}{f' ({version})' if version else ''}: {_told(problem, version)}"
                if asked["setup"]:
                    yield f"{said}; the setup steps may add it", "", "unknown"
                else:
                    yield said, _wanted(problem), "failed"


def _told(problem: ArgProblem, version: str) -> str:
    if "has no flag" not in problem.message:
        return f"--{problem.key}: {problem.message}"

    def has(known: ArgList) -> bool:
        return problem.key in known.names or problem.key in known.negative

    used = match(version).used if version else None
    # A build of somebody's own may lack what the list of its version has.
    other = whereabouts(has, used) if used and not has(load(used)) else None
    return f"{problem.message}{f'; {other}' if other else ''}"


def _wanted(problem: ArgProblem) -> str:
    return problem.hint or "a flag that its help shows"


def _versions(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    wanted, where = expect.vllm["version"], expect.vllm["where"]
    if not _RELEASE.match(wanted) or wanted.startswith("0.1.dev"):
        raise Skip(f"engine.version is {wanted}, and names no release")
    for node in nodes:
        try:
            found = _version(node, where)
        except Unknown as error:
            yield Finding((node.name,), str(error), status="unknown")
            continue
        if found.startswith("0.1.dev"):  # of a clone without tags, whatever it holds
            yield Finding((node.name,), f"{where} says {found}, which is no release", status="unknown")
        elif not _same(found, wanted):
            yield Finding((node.name,), f"{where} is vLLM {found}", f"{wanted}, as engine.version says")


def _same(found: str, wanted: str) -> bool:
    """Whether the builds are of one version: what stands behind a + is the build's own, where one has none."""
    (one, _, built), (other, _, asked) = found.partition("+"), wanted.partition("+")
    return one == other and (not asked or not built or built.startswith(asked) or asked.startswith(built))


def _asked(expect: Expect) -> bool:
    return bool(expect.vllm)


_AFTER = ("IMAGE.DIGEST", "DOCKER.NVIDIA")

CHECKS = (
    Check(
        "VLLM.FLAGS", "fleet", "error",
        "the vLLM that is to run takes every flag and value of each role's command",
        "engines that end at once: unrecognized arguments",
        "vllm serve --help=all, in the recipe's image (not pulled, no network) or where the profile has vLLM",
        "write what this vLLM takes, or name the image that engine.version means",
        ("vllm",), _asked, fleet=_flags, after=_AFTER,
        source="https://docs.vllm.ai/en/latest/cli/serve/",
    ),
    Check(
        "VLLM.VERSION", "fleet", "warning",
        "the vLLM that is to run is the engine.version of the recipe",
        "flags checked against another list, results under a wrong version",
        "vllm --version, in the recipe's image or where the profile has vLLM",
        "another image or environment, or the version that it has in engine.version",
        ("vllm",), _asked, fleet=_versions, after=_AFTER,
    ),
)  # fmt: skip
