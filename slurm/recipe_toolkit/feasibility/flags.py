"""Flags against the lists of the engine's, the clients' and the router's versions."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from recipe_toolkit import client_args, vllm_args
from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.feasibility.variables import looks_secret
from recipe_toolkit.recipe import Recipe


def check_flags(recipe: Recipe) -> Iterator[Fault]:
    """Unknown flags, wrong values and flags that the toolkit sets, in the engine's and in each role's args."""
    version = recipe.engine.version
    unknown = vllm_args.unknown_version(version)
    if unknown:
        yield Fault(("engine", "version"), unknown.message, unknown.hint, severity=unknown.severity)
    places: list[FieldPath] = [("engine", "args"), *(("roles", role.name, "args") for role in recipe.roles)]
    for at, args in zip(places, [recipe.engine.args, *(role.args for role in recipe.roles)], strict=True):
        for problem in vllm_args.check(_without_secrets(args, vllm_args.RESERVED), version, ".".join(map(str, at))):
            path = (*at, *problem.path)
            yield Fault(path, problem.message, problem.hint, key=True, severity=problem.severity)


def _without_secrets(args: Mapping[str, Any], refused: Container[str] = ()) -> dict[str, Any]:
    """The flags whose values may be shown; the others are refused by :mod:`variables`, or by their names."""
    return {
        key: value for key, value in args.items() if vllm_args.canonical(key) in refused or not looks_secret(key, value)
    }


def check_router_flags(recipe: Recipe) -> Iterator[Fault]:
    """Flags that the router does not take."""
    yield from _client_faults(recipe.router.kind, recipe.router.args, recipe.router.version, ("router",))


def check_client_flags(recipe: Recipe, index: int) -> Iterator[Fault]:
    """Flags that a benchmark's client does not take; vllm bench serve is of the engine's version if not of its own."""
    benchmark = recipe.benchmarks[index]
    version = benchmark.version
    if version is None and benchmark.client == "vllm-bench":
        version = recipe.engine.version
    yield from _client_faults(benchmark.client, benchmark.args, version, ("benchmarks", index))


def _client_faults(program: str, args: Mapping[str, Any], version: str | None, at: FieldPath) -> Iterator[Fault]:
    if not args or not client_args.versions(program):
        return
    unknown = client_args.unknown_version(program, version)
    if unknown:
        yield Fault((*at, "args"), unknown.message, unknown.hint, key=True, severity=unknown.severity)
    for problem in client_args.check(program, _without_secrets(args), version):
        yield Fault((*at, "args", *problem.path), problem.message, problem.hint, key=True, severity=problem.severity)
