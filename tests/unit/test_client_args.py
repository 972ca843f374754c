"""Flags of the clients and of the router against their own lists, a row a mistake."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from recipe_support import changed, said
from recipe_toolkit import client_args
from recipe_toolkit.plan import client, router
from support import require

EXPORT = Path(__file__).parents[2] / "scripts" / "export-client-args"


@pytest.mark.parametrize(
    ("program", "key", "value", "message", "hint"),
    [
        ("aiperf", "request-ratee", 1, "aiperf 0.13.0 has no flag --request-ratee", "did you mean `request-rate`?"),
        ("aiperf", "zzzzz", 1, "aiperf 0.13.0 has no flag --zzzzz", "`version` says which it is"),
        ("aiperf", "verbose", 3, "takes no value, and is 3", "true gives the flag"),
        ("aiperf", "request-timeout-seconds", True, "needs a value, and is true", None),
        ("aiperf", "arrival-pattern", "poison", "'poison' is not one of concurrency-burst", "did you mean `poisson`?"),
        ("vllm-bench", "burstines", 1, "vllm-bench 0.33.0 has no flag --burstines", "did you mean `burstiness`?"),
        ("vllm-bench", "trust-remote-code", "yes", "takes no value, and is 'yes'", "true gives the flag"),
        ("vllm-router", "max-payload-siz", 1, "vllm-router 0.1.17 has no flag", "did you mean `max-payload-size`?"),
        ("vllm-router", "log-level", "loud", "'loud' is not one of debug", None),
    ],
)
def test_mistakes(program: str, key: str, value: Any, message: str, hint: str | None) -> None:
    (problem,) = client_args.check(program, {key: value}, None)
    assert problem.key == key
    assert message in problem.message
    assert problem.severity == "error"
    assert (problem.hint or "") == "" if hint is None else hint in str(problem.hint)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (
            "aiperf",
            {"verbose": True, "arrival-pattern": "Poisson", "request_timeout_seconds": 5, "extra-inputs": "a:1"},
        ),
        ("aiperf", {"no-allow-dataset-wrap": True, "header": ["a:b", "c:d"], "server-metrics": True}),
        ("vllm-bench", {"burstiness": 0.5, "trust-remote-code": True, "no-stream": False}),
        ("vllm-router", {"max-payload-size": 8, "log-level": "debug"}),
    ],
)
def test_what_is_taken(program: str, args: dict[str, Any]) -> None:
    assert client_args.check(program, args, None) == []


def test_the_same_flag_by_two_names() -> None:
    (problem,) = client_args.check("aiperf", {"arrival-pattern": "poisson", "request-rate-mode": "poisson"}, None)
    assert (problem.key, problem.message) == ("request-rate-mode", "is the same flag as arrival-pattern")


@pytest.mark.parametrize("program", ["aiperf", "vllm-bench", "lm-eval", "vllm-router"])
def test_every_flag_that_the_toolkit_sets_exists(program: str) -> None:
    reserved = {**client.RESERVED, "vllm-router": router.RESERVED}[program]
    assert client_args.check(program, dict.fromkeys(reserved, "x"), None) is not None
    unknown = [item for item in client_args.check(program, dict.fromkeys(reserved), None) if "no flag" in item.message]
    assert unknown == []


def test_a_version_without_a_list_is_warned_of(tmp_path: Path) -> None:
    text = changed(("{client: aiperf,", '{client: aiperf, version: "0.14.0", args: {new-flag: 1},'))
    assert said(tmp_path, text) == []
    assert said(tmp_path, text, warnings=True) == [
        "r.yaml:16:41: warning: benchmarks.0.args: there is no list of the flags of aiperf 0.14.0; "
        "args are checked against 0.13.0\n  hint: lists: 0.13.0",
        "r.yaml:16:48: warning: benchmarks.0.args.new-flag: aiperf 0.13.0 has no flag --new-flag",
    ]


@pytest.mark.parametrize(
    ("version", "severity"), [("0.26.0", "error"), ("0.26.3", "error"), ("0.26.1rc1.dev7+gabc", "warning")]
)
def test_a_client_of_the_series_is_checked_against_its_list(tmp_path: Path, version: str, severity: str) -> None:
    text = changed(
        ('version: "0.32.0"', f'version: "{version}"'),
        ("{client: aiperf,", "{client: vllm-bench, args: {burstines: 1},"),
    )
    told = [line for line in said(tmp_path, text, warnings=True) if "benchmarks" in line]
    assert told == [
        f"r.yaml:16:33: {'warning: ' * (severity == 'warning')}benchmarks.0.args.burstines: vllm-bench 0.26.0 has no "
        "flag --burstines\n  hint: did you mean `burstiness`?"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{client: aiperf,", "{client: aiperf, args: {x-y: 1},"), "16:29: benchmarks.0.args.x-y: aiperf 0.13.0"),
        (("{client: aiperf,", "{client: vllm-bench, args: {x-y: 1},"), "16:33: benchmarks.0.args.x-y: vllm-bench 0.32"),
        (("round_robin", "round_robin, args: {x-y: 1}"), "14:38: router.args.x-y: vllm-router 0.1.17 has no flag"),
        (("round_robin", "round_robin, version: 17"), "14:40: router.version: 17 is not a version such as"),
    ],
)
def test_a_slip_has_its_line(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    (problem,) = said(tmp_path, changed(change))
    assert message in problem


@pytest.mark.parametrize("program", ["aiperf", "vllm-router", "lm-eval"])
def test_the_list_is_what_the_program_says(tmp_path: Path, program: str) -> None:
    part = "lm-eval" if program == "lm-eval" else "aiperf"
    require(part, importlib.util.find_spec(program.replace("-", "_")) is not None, f"{program} is not installed")
    if metadata.version(program) not in client_args.versions(program):
        return  # another version: its list is not kept
    subprocess.run(
        [EXPORT, program, "--python", sys.executable, "--output", tmp_path / "x.json"], check=True, timeout=120
    )
    kept = client_args.FOLDER / f"{program}-{metadata.version(program)}.json"
    assert (tmp_path / "x.json").read_text() == kept.read_text()
