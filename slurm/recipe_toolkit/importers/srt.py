"""A recipe of srt-slurm, of its first format or its second, to a draft of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath

from recipe_toolkit.feasibility.layout import local_replicas
from recipe_toolkit.importers.draft import Draft, slug
from recipe_toolkit.importers.env import read_env
from recipe_toolkit.importers.notes import ASSUMED, CHANGED, LOST, PROFILE, SET, UNNEEDED
from recipe_toolkit.importers.profile import ProfileDraft
from recipe_toolkit.importers.reader import Cursor, Source
from recipe_toolkit.importers.srt_bench import read_benchmark
from recipe_toolkit.importers.srt_frontend import read_frontend
from recipe_toolkit.importers.srt_job import lose_the_rest, read_job, read_setup, read_site
from recipe_toolkit.importers.srt_kv import KV_FLAGS, kv_flag, read_kv
from recipe_toolkit.importers.srt_shape import RoleShape, Shape, find_shape, refuse_other_engines
from recipe_toolkit.importers.vllm_flags import Flags, read_flags
from recipe_toolkit.recipe import Parallel

_DEFAULT_GPUS = 4
_VERSION = re.compile(r"[0-9]+\.[0-9]+[A-Za-z0-9.+-]*")
_IMAGE_VERSION = re.compile(r"vllm/vllm-openai:v([0-9]+\.[0-9]+\.[0-9]+(?:rc[0-9]+)?)(?![0-9.])")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class Import:
    """One variant: its draft, what is of the site, and whether its sizes cannot be."""

    source: Source
    draft: Draft
    profile: ProfileDraft = field(default_factory=ProfileDraft)
    infeasible: str | None = None
    nodes: int | None = None


def convert(source: Source) -> Import:
    """Read the whole document. Problems and notes go to the source; every key is used, or noted as lost."""
    root = source.root
    found = Import(source, Draft(source.file))
    root.at("schema").use()
    shape = find_shape(root)
    refuse_other_engines(shape)
    source.refuse()
    _head(root, found)
    version = _engine(root, shape, found)
    _resources(root, shape, found)
    flags = {role.name: read_flags(role.args.items(), version) for role in shape.roles}
    for role in shape.roles:
        _role(role, shape, flags[role.name], found)
    sides = {role: side for role, side in ((role, kv_flag(one)) for role, one in flags.items()) if side is not None}
    read_kv(shape.engine.at("connector"), sides, shape.disaggregated, found.draft)
    _served_name(flags, found)
    _engine_options(shape)
    read_frontend(root, found.draft, found.profile, _several(found))
    limit = read_job(root, found.draft, found.profile)
    trust = any(side.args.get("trust-remote-code", (False, None))[0] is True for side in flags.values())
    read_benchmark(root, found.draft, limit, trust)
    read_setup(root.at("setup_script"), found.draft, found.profile)
    read_site(root, found.draft, found.profile)
    if "roles" in found.draft.data and shape.disaggregated and len(found.draft.data["roles"]) == 2:
        found.draft.hoist(list(flags))
    lose_the_rest(source)
    return found


def _head(root: Cursor, found: Import) -> None:
    draft, source = found.draft, found.source
    name, path = root.at("name"), root.at("model", "path")
    text = name.text()
    if not text:
        name.problem("missing: a recipe has a name")
        text = "recipe"
    draft.set(("name",), slug(text), name)
    if slug(text) != text:
        source.note(CHANGED, name.path, text, f"names have letters, digits, '.', '_' and '-', 80 at most: {slug(text)}")
    precision = root.at("model", "precision").text()
    # A label of theirs, which no program reads: the model's own files say it.
    draft.set(("description",), f"Imported from srt-slurm; {precision} weights." if precision else None)
    draft.set(("source",), {"title": f"{PurePath(source.file).stem} (srt-slurm)", "url": source.file})
    _model(path, root.at("identity", "model"), found)


def _model(path: Cursor, identity: Cursor, found: Import) -> None:
    text = path.text()
    repo, revision = identity.at("repo").text(), identity.at("revision").text()
    pinned = f"hf:{repo}@{revision}" if repo and revision else f"hf:{repo}" if repo else None
    if not text:
        path.problem("missing: a recipe serves a model")
    elif text.startswith("hf:") or (_HUB.fullmatch(text) and not text.startswith("/")):
        name = text.removeprefix("hf:")
        if not text.startswith("hf:"):
            found.source.note(ASSUMED, path.path, text, "taken for a repository of the hub")
        found.draft.set(("model", "path"), pinned if pinned and repo == name else f"hf:{name}", path)
    else:
        found.draft.set(("model", "path"), text, path)
        if pinned and not text.startswith("/"):
            found.profile.data.setdefault("models", {})[text] = pinned
            found.source.note(
                PROFILE, path.path, text, f"models of the cluster profile: {pinned}, or a path on the nodes"
            )
    for key, item in identity.items():
        if key not in ("repo", "revision"):
            item.note(LOST, "only the repository and its revision are kept of a model's identity")
    stage = path.source.root.at("model", "stage_dir")
    if stage.given:
        stage.note(LOST, "models are read where they lie, not copied to each node first")


def _served_name(flags: dict[str, Flags], found: Import) -> None:
    given = [(side.elsewhere[key], key) for side in flags.values() for key in side.elsewhere if key not in KV_FLAGS]
    for cursor, key in given:
        value = cursor.use()
        if key == "served-model-name":
            names = value if isinstance(value, list) else [value]
            before = found.draft.data.get("model", {}).get("served_name")
            if before is None and names and isinstance(names[0], str):
                found.draft.set(("model", "served_name"), names[0], cursor)
                names = names[1:]
            elif names[:1] == [before]:
                names = names[1:]
            if names:
                found.source.note(LOST, cursor.path, value, "a model is served under one name, the same in every role")
        else:
            cursor.note(SET, f"model.path says it: {found.draft.data.get('model', {}).get('path')}")


def _engine(root: Cursor, shape: Shape, found: Import) -> str:
    container, identity = root.at("model", "container"), root.at("identity", "container", "image")
    image = container.text() or identity.text()
    declared = identity.text()
    frameworks = root.at("identity", "frameworks")
    said = frameworks.at("vllm")
    version, match = said.text(), _IMAGE_VERSION.search(declared or image or "")
    found.draft.set(("engine", "kind"), "vllm", shape.kind)
    if version and _VERSION.fullmatch(version):
        found.draft.set(("engine", "version"), version, said)
    elif match:
        version = match[1]
        found.draft.set(("engine", "version"), version, container)
    else:
        version = "nightly"
        found.draft.set(("engine", "version"), version, container)
        message = "no version of vLLM is named: nightly stands for the newest that is known"
        found.draft.comments["engine"] = "No version of vLLM is named there."
        found.source.note(ASSUMED, container.path, image, message)
    if image:
        _image(container if container.given else identity, image, declared, found)
    for name, item in frameworks.items():
        if name != "vllm":
            item.note(UNNEEDED, "Dynamo is not used" if name == "dynamo" else "only the version of vLLM is checked")
    return version


def _image(cursor: Cursor, image: str, declared: str | None, found: Import) -> None:
    """An image or an alias of one stays in the recipe; a file of the site is the profile's."""
    for text in (image, declared):
        if text and not text.startswith("/") and not text.endswith(".sqsh") and re.search(r"[/:#@]", text):
            plain = text.removeprefix("docker://").replace("#", "/")
            found.draft.set(("engine", "image"), plain, cursor)
            return
    if image.startswith("/"):
        found.profile.set(("tools", "vllm", "image"), image, cursor)
    else:
        found.draft.set(("engine", "image"), image, cursor)
        cursor.note(PROFILE, "an alias: container.images of the cluster profile says of which image")


def _resources(root: Cursor, shape: Shape, found: Import) -> None:
    resources, gpu = root.at("resources"), root.at("resources", "gpu_type")
    found.draft.set(("resources", "gpu"), (gpu.text() or "unknown").upper() if gpu.given else "unknown", gpu)
    if not gpu.given:
        found.source.note(ASSUMED, gpu.path, None, "the GPU is not named; `resources.gpu` is for people")
    number = resources.at("gpus_per_node")
    found.draft.set(("resources", "gpus_per_node"), number.integer(least=1, most=1024) or _DEFAULT_GPUS, number)
    if not number.given:
        found.source.note(ASSUMED, number.path, None, f"srt-slurm's default, {_DEFAULT_GPUS}")
    together = next((role.nodes for role in shape.roles if role.nodes.value in (0, "0", "colocate")), None)
    allowed = shape.engine.at("allow_prefill_decode_colocation")
    across = shape.engine.at("allow_prefill_decode_colocation_across_nodes")
    if allowed.flag() | across.flag() or together is not None:
        found.draft.set(("resources", "share_nodes"), True, together or allowed)
    shape.spread.flag()
    het = resources.at("het_jobs")
    if het.flag():
        het.note(LOST, "the job is one component: prefill and decode get nodes of the same kind and partition")


def _role(role: RoleShape, shape: Shape, flags: Flags, found: Import) -> None:
    at = ("roles", role.name)
    instances = role.workers.integer(least=1, most=4096)
    found.draft.set((*at, "instances"), instances or 1, role.workers)
    for key, (value, cursor) in flags.sizes.items():
        default = {"ep": False, "dp_lb": "internal"}.get(key, 1)
        if key != "dp_lb" and (value != default or key == "tp"):
            found.draft.set((*at, "parallel", key), value, cursor)
    sizes = Parallel(flags.size("tp"), flags.size("pp"), flags.size("dp"), ep=bool(flags.sizes.get("ep", (False,))[0]))
    if "tp" not in flags.sizes:
        found.draft.set((*at, "parallel", "tp"), 1)
    _gpus(role, sizes, instances or 1, found)
    _balance(at, sizes, flags, found)
    for name, (value, cursor) in flags.args.items():
        found.draft.set((*at, "args", name), value, cursor)
    if (
        shape.spread.value is True
        and sizes.size * 2 <= found.draft.data["resources"]["gpus_per_node"]
        and (instances or 1) > 1
    ):
        found.draft.set((*at, "instances_per_node"), 1, shape.spread)
    read_env(role.env, (*at, "env"), found.draft, found.profile)
    if shape.layout == 2:
        _second_only(role.args.source.root.at(*role.args.path[:-1]), found)


def _gpus(role: RoleShape, sizes: Parallel, instances: int, found: Import) -> None:
    """What the file allots to each worker against what its sizes take."""
    per_node = found.draft.data["resources"]["gpus_per_node"]
    nodes = 0 if role.nodes.value == "colocate" else role.nodes.integer(most=100_000)
    role.nodes.use()
    if nodes:
        found.nodes = (found.nodes or 0) + nodes
    given = role.gpus.integer(least=1, most=100_000)
    allotted = given or (nodes * per_node // instances if nodes else None)
    if allotted is None or allotted == sizes.size:
        return
    where = role.gpus if role.gpus.given else role.nodes
    if sizes.size > allotted:
        found.infeasible = f"tp x pp x dp = {sizes.size} GPUs, and a worker of {role.name} has {allotted}"
        where.problem(found.infeasible)
    else:
        message = f"{allotted} GPUs for each worker of {role.name}, whose sizes take {sizes.size}: the rest stay idle"
        where.source.note(CHANGED, where.path, where.value, message)
        found.draft.comments["roles"] = f"There: {message}."


def _balance(at: tuple[str, str], sizes: Parallel, flags: Flags, found: Import) -> None:
    """An instance over several nodes has a frontend on each in srt-slurm: vLLM's hybrid balancing."""
    local = local_replicas(sizes, found.draft.data["resources"]["gpus_per_node"])
    hybrid = local is not None and 0 < local < sizes.dp and (local > 1 or sizes.ep)
    cursor = flags.sizes.get("dp_lb", (None, None))[1]
    if hybrid:
        found.draft.set((*at, "parallel", "dp_lb"), "hybrid", cursor)
    elif cursor is not None:
        cursor.note(UNNEEDED, "an instance on one node has one API server for all its ranks")


def _second_only(block: Cursor, found: Import) -> None:
    image = block.at("container")
    if image.given and image.value != found.draft.data["engine"].get("image"):
        image.note(LOST, "one image serves every role, that of model.container")
    image.use()
    for key, why in (
        ("sidecar", "Dynamo is not used"),
        ("kv_events", "vllm-router reads no KV events"),
        ("critical", "the end of any engine ends the run"),
    ):
        item = block.at(key)
        if item.given:
            item.note(LOST if (key, item.value) == ("critical", False) else UNNEEDED, why)
    options = block.at("srun_options")
    for _, item in options.items():
        item.note(LOST, "processes are not started by one srun each")
    engine = block.at("engine")
    if engine.given:
        for _, item in engine.items() if isinstance(engine.value, dict) else ():
            item.note(UNNEEDED if item.value == "vllm" else LOST, "options of the engine hold for all roles")
        engine.use() if isinstance(engine.value, str) else None


def _engine_options(shape: Shape) -> None:
    engine = shape.engine
    mode, events, store = engine.at("dp_launch_mode"), engine.at("kv_events_config"), engine.at("mooncake_kv_store")
    if mode.given:
        mode.note(SET, "one process a node holds the instance's ranks there")
    if events.given:
        events.note(UNNEEDED, "vllm-router reads no KV events")
    if store.given:
        store.note(LOST, "no store of KV beside the engines: what leaves the GPUs' memory is computed again")
    for key in ("set_cuda_visible_devices", "set_visible_devices"):
        if engine.at(key).given:
            engine.at(key).note(SET, "the plan gives each process its own devices")


def _several(found: Import) -> bool:
    roles = found.draft.data.get("roles", {})
    hybrid = any(role.get("parallel", {}).get("dp_lb") == "hybrid" for role in roles.values())
    return len(roles) > 1 or hybrid or any(role["instances"] > 1 for role in roles.values())
