"""Environment variables that a recipe or profile may not set, and values that look like secrets."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from recipe_toolkit import vllm_args
from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Recipe

_DEVICES = "the plan gives each process its own devices"
_ADDRESS = "each process is given its own node's address"
_PORTS = "ports are reserved on each node when the run begins"
_RANKS = "the plan places the ranks; sizes stand in roles.ROLE.parallel"

RESERVED = {
    "CUDA_VISIBLE_DEVICES": _DEVICES,
    "CUDA_DEVICE_ORDER": _DEVICES,
    "NVIDIA_VISIBLE_DEVICES": _DEVICES,
    "HIP_VISIBLE_DEVICES": _DEVICES,
    "ROCR_VISIBLE_DEVICES": _DEVICES,
    "ZE_AFFINITY_MASK": _DEVICES,
    "VLLM_HOST_IP": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": _PORTS,
    "VLLM_PORT": "ranks that start together would find the same ports free, one after the other",
    "MASTER_ADDR": _ADDRESS,
    "MASTER_PORT": _PORTS,
    "VLLM_DP_RANK": _RANKS,
    "VLLM_DP_RANK_LOCAL": _RANKS,
    "VLLM_DP_SIZE": _RANKS,
    "VLLM_DP_MASTER_IP": _ADDRESS,
    "VLLM_DP_MASTER_PORT": _PORTS,
    "RANK": _RANKS,
    "LOCAL_RANK": _RANKS,
    "WORLD_SIZE": _RANKS,
}
_PREFIXES = {
    "SLURM_": "Slurm sets it",
    "SUBMITIT_": "submitit sets it",
    "RECIPE_": "the toolkit sets it",
}
_SITE = {
    "GLOO_SOCKET_IFNAME": "it names a network interface of one site",
    "NCCL_SOCKET_IFNAME": "it names a network interface of one site",
}

_SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$")
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
)
_LONGEST_SECRET = 4096
_NO_SECRET = re.compile(r"|true|false|[0-9]{1,6}|none|EMPTY", re.IGNORECASE)


def looks_secret(name: str, value: object) -> bool:
    """Whether a variable (or a flag, spelt like one) seems to hold a credential."""
    if not isinstance(value, str):
        return False
    named = _SECRET_NAME.search(name.upper().replace("-", "_")) is not None
    return bool(_SECRET_VALUE.search(value[:_LONGEST_SECRET])) or (named and not _NO_SECRET.fullmatch(value))


def holds_secret(text: str) -> bool:
    """Whether a line of a text holds what looks like a credential."""
    return any(_SECRET_VALUE.search(line[:_LONGEST_SECRET]) for line in text.splitlines())


def reserved(name: str) -> str | None:
    """Why nobody but the toolkit sets this variable, or None."""
    return RESERVED.get(name) or next((why for begin, why in _PREFIXES.items() if name.startswith(begin)), None)


def check_env(env: Mapping[str, str], at: FieldPath, *, site: bool = False) -> Iterator[Fault]:
    """What of ``env`` is refused; ``site``: it is a profile's, which may name network interfaces."""
    for name, value in env.items():
        reason = reserved(name)
        if reason:
            yield Fault((*at, name), f"cannot be set: {reason}", "leave it out", key=True)
        elif name in _SITE and not site:
            yield Fault((*at, name), f"cannot be set: {_SITE[name]}", "`interface:` in the cluster profile", key=True)
        elif looks_secret(name, value):
            # The value must not reach a terminal or a log.
            where = "the cluster profile" if not site else "this profile, beside env,"
            hint = f"remove it here; `secrets: [{name}]` in {where} takes it from the shell that submits"
            yield Fault((*at, name), "looks like a secret, and files are copied into every run folder", hint)


def check_recipe(recipe: Recipe) -> Iterator[Fault]:
    """All environments of a recipe, and its flags' values and setup steps as far as they look like secrets."""
    envs: list[tuple[FieldPath, Mapping[str, str]]] = [
        (("engine", "env"), recipe.engine.env),
        *((("roles", role.name, "env"), role.env) for role in recipe.roles),
        (("router", "env"), recipe.router.env),
        *((("benchmarks", index, "env"), item.env) for index, item in enumerate(recipe.benchmarks)),
    ]
    for at, env in envs:
        yield from check_env(env, at)
    # vLLM's own flags for secrets are refused by name, whatever their value.
    known = vllm_args.RESERVED
    yield from _check_args(recipe.engine.args, ("engine", "args"), known)
    for role in recipe.roles:
        yield from _check_args(role.args, ("roles", role.name, "args"), known)
    yield from _check_args(recipe.router.args, ("router", "args"))
    for index, item in enumerate(recipe.benchmarks):
        yield from _check_args(item.args, ("benchmarks", index, "args"))
    for index, step in enumerate(recipe.setup):
        if holds_secret(step.script):
            hint = "`secrets` of the profile names variables that the steps find in their environment"
            yield Fault(("setup", index), f"{step.name} holds what looks like a secret", hint)


def _check_args(args: Mapping[str, object], at: FieldPath, refused: Container[str] = ()) -> Iterator[Fault]:
    for name, value in args.items():
        if looks_secret(name, value) and vllm_args.canonical(name) not in refused:
            hint = "a flag stands in plain sight of every user of a node; `secrets` of the profile names variables"
            yield Fault((*at, name), "looks like a secret", hint)
