"""A recipe of sparkrun: one ``vllm serve`` over DGX Sparks, to a draft of ours.

Facts: sparkrun's ``RECIPES.md``. A Spark has one GPU, so an instance takes as many nodes as its sizes make.
"""

from __future__ import annotations

import re
from typing import Any

from recipe_toolkit import vllm_args
from recipe_toolkit.document import Document
from recipe_toolkit.importers.command import CommandError, filled, place_flags, read_command
from recipe_toolkit.importers.draft import Draft, slug
from recipe_toolkit.importers.env import read_env
from recipe_toolkit.importers.notes import ASSUMED, CHANGED, LOST, UNNEEDED
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.importers.reader import Cursor, Source
from recipe_toolkit.importers.srt import Import
from recipe_toolkit.importers.vllm_flags import Flags, read_flags

_RUNTIMES = frozenset({"vllm", "vllm-distributed", "vllm-ray", "eugr-vllm"})
_SIZES = {
    "tensor_parallel": "tensor-parallel-size",
    "pipeline_parallel": "pipeline-parallel-size",
    "data_parallel": "data-parallel-size",
}
_VERSION = re.compile(r"vllm/vllm-openai:v([0-9]+\.[0-9]+\.[0-9]+)(?![0-9.])")
_ROLE = ("roles", "serve")
_TIME_LIMIT = "04:00:00"


def convert(document: Document) -> Import:
    """Read the whole document, which is changed. Problems and notes go to its source."""
    source = Source(document)
    root = source.root
    found = Import(source, Draft(source.file), ProfileDraft("docker"))
    _runtime(root)
    source.refuse()
    version = _head(root, found)
    items = _flags(root, version, found.draft)
    source.refuse()
    flags = read_flags(items, version)
    _role(root, flags, found)
    read_env(root.at("env"), ("engine", "env"), found.draft, found.profile)
    _setup(root, found.draft)
    _measured(root, found.draft)
    for key, message in _CONSEQUENCES.items():
        if root.at(key).given:
            root.at(key).note(LOST, message)
    for cursor in list(source.leftovers()):
        cursor.note(LOST, "a recipe has no place for it")
    return found


_CONSEQUENCES = {
    "mods": "the container is not changed as it was: what the mods patch is missing",
    "build_args": "images are taken as they are, not built",
    "containers": "one image serves all nodes",
    "post_exec": "nothing is run after the engines have started",
    "post_commands": "nothing is run after the engines have started",
}


def _runtime(root: Cursor) -> None:
    runtime = root.at("runtime")
    name = runtime.text() or "vllm"
    if name not in _RUNTIMES:
        runtime.problem(f"a recipe of {name}; the toolkit serves with vLLM, whose flags are others")
    elif name in ("vllm-ray", "eugr-vllm"):
        runtime.note(CHANGED, "instances are launched without Ray")


def _head(root: Cursor, found: Import) -> str:
    draft, model, image = found.draft, root.at("model"), root.at("container")
    name = root.at("name")
    text = name.text() or (model.value if isinstance(model.value, str) else "recipe").rsplit("/", 1)[-1]
    draft.set(("name",), slug(text), name)
    draft.set(("description",), root.at("description").text(), root.at("description"))
    draft.set(("source",), {"title": f"{text} (sparkrun)", "url": found.source.file})
    path, revision = model.text() or "", root.at("model_revision").text()
    if path.startswith("/"):
        draft.set(("model", "path"), path, model)
    elif ":" in path:
        model.problem("weights in GGUF files are not vLLM's")
    else:
        draft.set(("model", "path"), f"hf:{path}" + (f"@{revision}" if revision else ""), model)
    draft.set(("engine", "kind"), "vllm")
    reference = image.text()
    match = _VERSION.search(reference or "")
    version = match[1] if match else "nightly"
    draft.set(("engine", "version"), version, image)
    draft.set(("engine", "image"), reference, image)
    if not match:
        message = "no version of vLLM is named: nightly stands for the newest that is known"
        found.source.note(ASSUMED, image.path, reference, message)
        draft.comments["engine"] = "No version of vLLM is named there."
    draft.set(("resources",), {"gpu": "GB10", "gpus_per_node": 1})
    for key in ("recipe_version", "runtime_version", "cluster_only", "solo_only", "mode", "executor"):
        root.at(key).use()
    for key in ("metadata", "runtime_cache"):
        if root.at(key).given:
            root.at(key).note(
                UNNEEDED, "it is for people and estimates, no flag" if key == "metadata" else "caches are env"
            )
    return version


def _flags(root: Cursor, version: str, draft: Draft) -> list[tuple[str, Cursor]]:
    """The flags of the command or, where there is none, of the defaults by their names."""
    defaults, command = root.at("defaults"), root.at("command")
    values = {key: item.value for key, item in defaults.items() if not isinstance(item.value, (dict, list))}
    if not command.given:
        items = [(_SIZES.get(key, key), item) for key, item in defaults.items()]
        return [pair for pair in items if _is_known(*pair, version)]
    text = command.text()
    if not text:
        command.problem("is empty")
        return []
    full, used = filled(text, {"model": root.at("model").value, **values})
    for key, item in defaults.items():
        if key in used:
            item.use()
        else:
            item.note(UNNEEDED, "the command does not name it")
    try:
        variables, _model, flags, rest = read_command(full, version)
    except CommandError as error:
        command.problem(str(error))
        return []
    for name, value in variables.items():
        draft.set(("engine", "env", name), value, command)
    if rest:
        command.note(LOST, "only vllm serve and its flags are carried of the command", " ".join(rest))
    place_flags(root.source.document, ("command",), flags)
    root.source.reset(("command",))
    return [(key, root.at("command", key)) for key in flags]


def _is_known(key: str, item: Cursor, version: str) -> bool:
    plain = vllm_args.canonical(key).partition(".")[0]
    if vllm_args.knows(vllm_args.full_name(plain, version), version) or vllm_args.positive(plain, version):
        return True
    item.note(LOST, "no flag of vLLM: sparkrun drops it too where there is no command")
    return False


def _role(root: Cursor, flags: Flags, found: Import) -> None:
    draft = found.draft
    draft.set((*_ROLE, "instances"), 1)
    for key, (value, cursor) in flags.sizes.items():
        if key != "dp_lb" and (value not in (1, False) or key == "tp"):
            draft.set((*_ROLE, "parallel", key), value, cursor)
    if "tp" not in flags.sizes:
        draft.set((*_ROLE, "parallel", "tp"), 1)
    for name, (value, cursor) in flags.args.items():
        draft.set((*_ROLE, "args", name), value, cursor)
    _elsewhere(flags, found)
    _nodes(root, flags.size("tp") * flags.size("pp") * flags.size("dp"))


def _elsewhere(flags: Flags, found: Import) -> None:
    for name, cursor in flags.elsewhere.items():
        given: Any = cursor.use()
        if name == "served-model-name":
            names = given if isinstance(given, list) else [given]
            found.draft.set(("model", "served_name"), names[0], cursor)
            if names[1:]:
                found.source.note(LOST, cursor.path, given, "a model is served under one name")
        elif name == "kv-transfer-config":
            cursor.note(LOST, "a KV connector beside a role that does both has no place")
        else:
            cursor.note(UNNEEDED, "model.path says it")


def _nodes(root: Cursor, nodes: int) -> None:
    least, most = root.at("min_nodes").integer(least=1), root.at("max_nodes").integer(least=1)
    if most is not None and nodes > most:
        root.at("max_nodes").problem(f"{most} nodes of one GPU, and the sizes of the command take {nodes}")
    elif least is not None and nodes < least:
        root.at("min_nodes").note(CHANGED, f"the sizes of the command take {nodes}", least)


def _setup(root: Cursor, draft: Draft) -> None:
    """Commands that are run in the container before it serves."""
    cursor = root.at("pre_exec")
    lines = []
    for item in cursor.entries():
        if isinstance(item.value, str):
            lines.append(item.text() or "")
        else:
            item.note(LOST, "only commands are carried into setup")
    if lines:
        text = "\n".join(["#!/bin/bash -e", *lines, ""])
        draft.set(("setup",), [{"name": "pre_exec", "run": text}], cursor)


def _measured(root: Cursor, draft: Draft) -> None:
    bench = root.at("benchmark")
    if bench.given:
        bench.note(LOST, "its client is not one of a recipe's: the run ends when all ranks have answered")
    else:
        root.source.note(ASSUMED, bench.path, None, "nothing is measured: the run ends when all ranks have answered")
        bench.use()
    draft.set(("benchmarks",), [{"client": "command", "name": "none", "command": ["true"]}])
    draft.set(("time_limit",), _TIME_LIMIT)
    root.source.note(ASSUMED, ("time_limit",), None, f"sparkrun has none; {_TIME_LIMIT} here")
    options = root.at("executor_config")
    for key, item in options.items():
        alike = key in ("shm_size", "ipc", "network", "auto_remove", "gpus")
        message = "containers have the node's IPC, network and GPUs, and are removed at the end"
        item.note(UNNEEDED if alike else LOST, message if alike else "an option of sparkrun's containers")
