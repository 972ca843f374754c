"""What is served, and by which build of what."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipe_toolkit.faults import Fault
from recipe_toolkit.feasibility.layout import local_replicas
from recipe_toolkit.feasibility.lint.registry import rule
from recipe_toolkit.feasibility.serving import effective_args, where_set
from recipe_toolkit.recipe import Recipe, Role

_FLOATING = re.compile(r"(latest|main|master|dev|stable|nightly)(-.*)?", re.IGNORECASE)
_COMMIT = re.compile(r"[-_.][0-9a-f]{7,40}(?![0-9a-z])")
_RELEASE = re.compile(r"v?(\d+\.\d+)\.\d+(?![\d.])")
_SERIES = re.compile(r"(\d+\.\d+)(\.\d+)?([.+]?post.*|\+.*)?")


def _tag(image: str) -> str | None:
    """The tag of an image of a registry, empty where it has none; None for a file, or an image named by digest."""
    if "@" in image or image.startswith(("/", ".")) or image.endswith((".sqsh", ".sif")):
        return None
    return image.rpartition("/")[2].partition(":")[2]


@rule(
    "image-floats",
    "warning",
    "`engine.image` has no tag, or one that moves (`latest`, `nightly`)",
    "The same recipe runs other code next week, and may run two builds at once on nodes that pulled on different days.",
    do="`image: vllm/vllm-openai:v0.32.0@sha256:…`: docker prints the digest when it pulls.",
)
def image_floats(recipe: Recipe) -> Iterator[Fault]:
    """Tags that name no build."""
    tag = _tag(recipe.engine.image) if recipe.engine.image else None
    if tag is not None and (not tag or (_FLOATING.fullmatch(tag) and not _COMMIT.search(tag))):
        said = f"the tag {tag}" if tag else "an image without a tag"
        yield Fault(("engine", "image"), f"{said} is another build from one week to the next", "name it by its digest")


@rule(
    "image-of-another-version",
    "warning",
    "the tag of `engine.image` is a release of another series than `engine.version`",
    "Flags are checked against `engine.version`: the image may refuse them when the nodes are there.",
    do='`version: "0.32.0"` beside `image: vllm/vllm-openai:v0.32.0`.',
)
def image_version(recipe: Recipe) -> Iterator[Fault]:
    """A release in the image's tag against the version of the flags."""
    image = recipe.engine.image or ""
    tag, series = _tag(image), _SERIES.fullmatch(recipe.engine.version)
    # Other programs' images with vLLM inside (vllm-runtime is Dynamo's) count in versions of their own.
    own = re.search(r"(^|/)vllm(-openai[\w-]*)?:", image)
    found = _RELEASE.match(tag) if tag and own else None
    if found and series and found[1] != series[1]:
        yield Fault(
            ("engine", "version"),
            f"the image is of vLLM {found[1]}, and flags are checked against {recipe.engine.version}",
            f'version: "{found.group().removeprefix("v")}"',
        )


@rule(
    "model-without-revision",
    "warning",
    "`model.path` is a repository of the hub without a revision",
    "Weights, chat template and tokenizer are those of the day.",
    do="`path: hf:ORG/REPO@COMMIT`: the commit stands on the repository's page.",
)
def model_revision(recipe: Recipe) -> Iterator[Fault]:
    """Repositories that move."""
    if recipe.model.path.startswith("hf:") and "@" not in recipe.model.path:
        yield Fault(("model", "path"), "names no revision", f"{recipe.model.path}@COMMIT")


@rule(
    "eager-decode",
    "warning",
    "`enforce-eager` on a role that decodes, on GPUs",
    "Without CUDA graphs each step waits for the CPU to launch its kernels: TPOT is that of the CPU.",
    do="Leave it out, or `compilation-config: {cudagraph_mode: FULL_DECODE_ONLY}`.",
)
def eager_decode(recipe: Recipe) -> Iterator[Fault]:
    """Decode without graphs."""
    for role in recipe.roles:
        args = effective_args(recipe, role)
        if role.name != "prefill" and recipe.resources.device == "gpu" and args.get("enforce-eager") is True:
            at = where_set(recipe, role, "enforce-eager")
            yield Fault(at, f"{role.name} runs without CUDA graphs", "leave it out", key=True)


@rule(
    "gpus-idle",
    "note",
    "the nodes of a role have GPUs that no instance takes, in a run of several nodes",
    "They are paid for, and figures per working GPU hide them: compare per allocated GPU.",
    do="`share_nodes: true` in `resources`, or more instances.",
)
def gpus_idle(recipe: Recipe) -> Iterator[Fault]:
    """GPUs of the nodes of each role against those of its instances."""
    gpus = recipe.resources.gpus_per_node
    if recipe.resources.share_nodes or recipe.resources.device != "gpu":
        return
    taken = [(role, _nodes(role, gpus)) for role in recipe.roles]
    if sum(nodes for _, nodes in taken) < 2:
        return
    for role, nodes in taken:
        idle = nodes * gpus - role.instances * role.parallel.size
        if idle:
            yield Fault(
                ("roles", role.name),
                f"{idle} of the {nodes * gpus} GPUs of its {nodes} node{'s' * (nodes > 1)} stay idle",
                "more instances, or resources.share_nodes: true" if recipe.disaggregated else "more instances",
                key=True,
            )


def _nodes(role: Role, gpus: int) -> int:
    """Nodes that the instances of a role take, whole."""
    size = role.parallel.size
    if size <= gpus:
        return -(-role.instances // min(gpus // size, role.instances_per_node or gpus))
    # Replicas are spread evenly; one that spans nodes fills them.
    local = local_replicas(role.parallel, gpus) or 0
    return role.instances * (role.parallel.dp // local if local else size // gpus)
