"""The stages of a tuning as recipes with a sweep: prefill alone, decode alone, and the splits that are confirmed.

Every value keeps the place in the user's recipe where it is said, so that what is wrong is told there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.document import Document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import Fault, FieldPath
from recipe_toolkit.recipe import Parallel
from recipe_toolkit.recipe_loader import LoadedRecipe, load_document

PREFILL, DECODE, CONFIRM = "prefill", "decode", "confirm"
MEASURED = (PREFILL, DECODE)
# As many requests a user as the published recipes of this method have.
_REQUESTS = {PREFILL: 16, DECODE: 4}
_PREFILL_OSL, _DECODE_ISL = 2, 1
_DUMMY_KV = "decode-bench"
_LONGEST = 60
_CLIENTS = ("aiperf", "vllm-bench")
# Of the first benchmark: what is the stage's own.
_OWN = ("name", "isl", "osl", "isl_min", "osl_min", "concurrency", "request_rate", "max_concurrency", "requests")
_OWN_RULES = ("requests_per_concurrency", "warmup", "warmup_per_concurrency", "repeats")


def check_tune(loaded: LoadedRecipe) -> None:
    """Raise InputError, with every fault, if a recipe cannot be tuned."""
    document = loaded.document
    faults = list(_faults(loaded))
    if faults:
        raise InputError([document.problem(fault) for fault in faults])


def _faults(loaded: LoadedRecipe) -> Iterator[Fault]:
    data, recipe = loaded.document.data, loaded.recipe
    if "tune" not in data:
        yield Fault(("tune",), "missing: nothing says what is to be measured", "docs/tune.md", absent=True)
        return
    tune = data["tune"]
    if "sweep" in data:
        yield Fault(
            ("sweep",), "a recipe with `tune` has no sweep of its own", "sweep: null in the tuned one", key=True
        )
    if not recipe.disaggregated:
        yield Fault(
            ("roles",), "prefill and decode are tuned, and this recipe has neither", "roles.prefill and .decode"
        )
    yield from (Fault(("tune", key), "missing", "docs/tune.md", absent=True) for key in _NEEDED if key not in tune)
    yield from _load_faults(loaded)
    if "dummy_kv" in tune.get(PREFILL, {}):
        yield Fault(("tune", PREFILL, "dummy_kv"), "is of decode alone", "leave it out", key=True)
    if any(key not in tune for key in _NEEDED):
        return
    least = [min(_size(item) for item in tune[role]["topologies"].values()) for role in MEASURED]
    if sum(least) > tune["gpus"]:
        text = f"{tune['gpus']} hold no split: the smallest prefill instance takes {least[0]}, decode {least[1]}"
        yield Fault(("tune", "gpus"), text, "more GPUs, or smaller topologies")
    for role in MEASURED:
        for name, item in tune[role]["topologies"].items():
            if _size(item) >= tune["gpus"]:
                at: FieldPath = ("tune", role, "topologies", name)
                yield Fault(
                    at, f"takes {_size(item)} of {tune['gpus']} GPUs: none is left for the other side", key=True
                )
        yield from _twice(role, tune[role]["topologies"])


_NEEDED = ("gpus", *MEASURED)


def _twice(role: str, topologies: Mapping[str, Any]) -> Iterator[Fault]:
    known: list[tuple[str, Any]] = []
    for name, item in topologies.items():
        same = next((other for other, before in known if before == item), None)
        if same is not None:
            yield Fault(("tune", role, "topologies", name), f"is the same as {same}", "name it once", key=True)
        known.append((name, item))


def _load_faults(loaded: LoadedRecipe) -> Iterator[Fault]:
    """The lengths that are tuned for are those of the first benchmark."""
    first = loaded.recipe.benchmarks[0]
    at: FieldPath = ("benchmarks", 0)
    if first.client not in _CLIENTS:
        yield Fault((*at, "client"), f"{first.client} has no lengths to tune for", "client: aiperf or vllm-bench first")
        return
    if first.isl_min is not None or first.osl_min is not None:
        yield Fault(at, "lengths that vary are not tuned for", "isl and osl alone")
    if (first.osl or 0) <= _PREFILL_OSL or (first.isl or 0) <= _PREFILL_OSL:
        yield Fault((*at, "osl"), f"ISL {first.isl}, OSL {first.osl}: too short to tell prefill from decode")


def _size(topology: Mapping[str, Any]) -> int:
    sizes = {key: int(topology["parallel"].get(key, 1)) for key in ("tp", "pp", "dp")}
    return sizes["tp"] * sizes["pp"] * sizes["dp"]


def stage(loaded: LoadedRecipe, role: str) -> LoadedRecipe:
    """The recipe that measures prefill or decode alone, with a variant a topology. Raises InputError."""
    base = loaded.document
    tune = base.data["tune"][role]
    document = _bare(base, role)
    document.data["roles"] = {"serve": _role(base, role)}
    document.graft(("roles", "serve"), base, ("roles", role))
    dummy = role == DECODE and tune.get("dummy_kv", True)
    if dummy:
        document.data["kv_transfer"] = {"connector": _DUMMY_KV}
    document.data["benchmarks"] = [_benchmark(base, role, tune, dummy=dummy)]
    document.graft(("benchmarks", 0), base, ("benchmarks", 0))
    document.graft(("benchmarks", 0, "concurrency"), base, ("tune", role, "concurrency"))
    found: dict[str, Any] = {}
    for name, item in tune["topologies"].items():
        fields: dict[str, Any] = {"roles.serve.parallel": copy.deepcopy(item["parallel"])}
        if "args" in item:
            fields["roles.serve.args"] = _args(base, role, item["args"])
        found[name] = fields
        for field, key in (("roles.serve.parallel", "parallel"), ("roles.serve.args", "args")):
            document.graft(("sweep", "variants", name, field), base, ("tune", role, "topologies", name, key))
    document.graft(("sweep",), base, ("tune", role, "topologies"))
    document.data["sweep"] = {"variants": found}
    return load_document(document)


def confirming(loaded: LoadedRecipe, variants: Mapping[str, Mapping[str, Any]]) -> LoadedRecipe:
    """The recipe whose variants are splits, as :func:`split_fields` has them. Raises InputError."""
    base = loaded.document
    document = _bare(base, CONFIRM)
    document.data["benchmarks"] = document.data["benchmarks"][:1]
    first = document.data["benchmarks"][0]
    for key in ("request_rate", "max_concurrency"):
        first.pop(key, None)
    document.graft(("sweep",), base, ("tune",))
    document.data["sweep"] = {"variants": {name: dict(fields) for name, fields in variants.items()}}
    return load_document(document)


def split_fields(
    loaded: LoadedRecipe, names: Mapping[str, str], instances: Mapping[str, int], concurrency: Sequence[int]
) -> dict[str, Any]:
    """The fields of a split. ``names``: of the topology, by role."""
    base = loaded.document
    fields: dict[str, Any] = {}
    for role in MEASURED:
        item = base.data["tune"][role]["topologies"][names[role]]
        fields[f"roles.{role}.instances"] = instances[role]
        fields[f"roles.{role}.parallel"] = copy.deepcopy(item["parallel"])
        if "args" in item:
            fields[f"roles.{role}.args"] = _args(base, role, item["args"])
    fields["benchmarks.0.concurrency"] = list(concurrency)
    return fields


def _bare(base: Document, name: str) -> Document:
    """A copy without what is not the stage's: other roles, loads, sweeps and what was published."""
    left_out = {"tune", "sweep", "published"} | (set() if name == CONFIRM else {"roles", "benchmarks", "kv_transfer"})
    data = {key: copy.deepcopy(value) for key, value in base.data.items() if key not in left_out}
    document = Document(base.file, data, dict(base.keys), dict(base.values))
    for key in left_out:
        document.drop((key,))
    data["name"] = f"{data['name'][:_LONGEST]}-{name}"
    return document


def _role(base: Document, role: str) -> dict[str, Any]:
    own = ("parallel", "instances", "instances_per_node")
    return {key: copy.deepcopy(value) for key, value in base.data["roles"][role].items() if key not in own}


def _args(base: Document, role: str, over: Mapping[str, Any]) -> dict[str, Any]:
    """The role's flags with those of the topology over them."""
    return {**copy.deepcopy(base.data["roles"][role].get("args", {})), **copy.deepcopy(dict(over))}


def _benchmark(base: Document, role: str, tune: Mapping[str, Any], *, dummy: bool) -> dict[str, Any]:
    first = base.data["benchmarks"][0]
    kept = {key: copy.deepcopy(value) for key, value in first.items() if key not in (*_OWN, *_OWN_RULES)}
    lengths = {"isl": first["isl"], "osl": _PREFILL_OSL}
    if role == DECODE:
        lengths = {"isl": first["isl"] if dummy else _DECODE_ISL, "osl": first["osl"]}
    return {
        **kept,
        "name": role,
        **lengths,
        "concurrency": list(tune["concurrency"]),
        "requests_per_concurrency": tune.get("requests_per_concurrency", _REQUESTS[role]),
        "warmup_per_concurrency": 1,
    }


def most_nodes(gpus: int, per_node: int, sizes: Mapping[str, Sequence[Parallel]]) -> int:
    """The most nodes that a split of so many GPUs can take, each role on nodes of its own."""

    def nodes(size: int, count: int) -> int:
        if size <= per_node:
            return -(-count // (per_node // size))
        return count * -(-size // per_node)

    most = 0
    for prefill in sizes[PREFILL]:
        for decode in sizes[DECODE]:
            for count in range(1, (gpus - decode.size) // prefill.size + 1):
                number = (gpus - count * prefill.size) // decode.size
                most = max(most, nodes(prefill.size, count) + nodes(decode.size, number))
    return most
