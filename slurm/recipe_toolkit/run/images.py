"""Phase *images*: every node holds the images of its programs, and all hold the same."""

from __future__ import annotations

import dataclasses
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Image
from recipe_toolkit.plan.values import resolve
from recipe_toolkit.run.context import Clock, Context
from recipe_toolkit.run.tasks import together

_ANSWER_S = 120.0  # to look and to identify, beside the fetching


async def images(context: Context) -> None:
    """Look on all nodes, fetch where an image is missing, compare what was found.

    Raises RunError naming every node that lacks an image which nobody can fetch, or the first that
    cannot fetch; DeadlineError; RunError if the nodes hold different images under one name.
    """
    clock = Clock(context.plan.deadlines.images)
    wanted = [(number, image, node) for number, image in enumerate(context.plan.images) for node in image.nodes]
    looked = await together(*(_ask(context, *item, clock, fetch=False) for item in wanted))
    missing = [item for item, reply in zip(wanted, looked, strict=True) if not reply["there"]]
    _refuse_unfetchable(context, [(image, node) for _, image, node in missing if not image.fetch])
    identities = {(number, node): reply["id"] for (number, _, node), reply in zip(wanted, looked, strict=True)}
    by_node: dict[int, list[tuple[int, Image, int]]] = {}
    for item in missing:
        by_node.setdefault(item[2], []).append(item)
    for found in await together(*(_fetch(context, items, clock) for items in by_node.values())):
        identities.update(found)
    for number, image in enumerate(context.plan.images):
        held = {node: identities[number, node] for node in image.nodes}
        _refuse_differences(context, image, held)
        context.images[image.reference] = next(iter(held.values()), None)
        context.journal.event("image", image=image.reference, id=context.images[image.reference])


async def _fetch(
    context: Context, items: list[tuple[int, Image, int]], clock: Clock
) -> dict[tuple[int, int], str | None]:
    """One after the other: they come over the same link to the same disk."""
    found = {}
    for number, image, node in items:
        reply = await _ask(context, number, image, node, clock, fetch=True)
        found[number, node] = reply["id"]
    return found


async def _ask(context: Context, number: int, image: Image, node: int, clock: Clock, *, fetch: bool) -> dict[str, Any]:
    order = _order(context, image, node, fetch)
    left = clock.left()
    stall = context.plan.deadlines.stall
    try:
        return await context.fleet.call(
            node, "image", left + _ANSWER_S, number=number, deadline=left, stall=stall, wanted=order
        )
    except RunError as error:
        raise type(error)(f"images: {context.node_label(node)}: {error.message}", hint=error.hint) from error


def _order(context: Context, image: Image, node: int, fetch: bool) -> dict[str, Any]:
    """The image's commands and paths for one node."""
    assert context.bindings is not None
    bindings = context.bindings
    file = resolve(image.file, bindings, node) if image.file is not None else None
    part = None
    if file is not None:
        folder, _, name = file.rpartition("/")
        part = f"{folder}/.{name}.{bindings.nodes[node].name}.{context.run.id}-{node:02}.part"
        bindings = dataclasses.replace(bindings, image_part=part)
    commands = {"present": image.present, "identify": image.identify, "store": image.store}
    commands["fetch"] = image.fetch if fetch else ()
    return {
        "reference": image.reference,
        "file": file,
        "part": part,
        "remedy": image.remedy,
        "env": _environment(context, image.reference, node),
        **{name: [resolve(word, bindings, node) for word in words] for name, words in commands.items()},
    }


def _environment(context: Context, reference: str, node: int) -> dict[str, str]:
    """The variables of a program of the node that runs in the image: where its runtime looks, the image must be."""
    every = (*context.plan.processes, *(point.process for point in context.plan.benchmarks))
    users = (context.bound[item.name] for item in every if item.node == node and item.image == reference)
    return next((user.env for user in users), {})


def _refuse_unfetchable(context: Context, missing: list[tuple[Image, int]]) -> None:
    """Raises RunError that names every image and node."""
    lines = []
    for image in dict.fromkeys(image for image, _ in missing):
        nodes = ", ".join(context.node_label(node) for other, node in missing if other is image)
        lines += [f"images: {image.reference} is not on {nodes}", *([f"hint: {image.remedy}"] if image.remedy else [])]
    if lines:
        raise RunError("\n".join(lines))


def _refuse_differences(context: Context, image: Image, held: dict[int, str | None]) -> None:
    """Raises RunError where nodes hold different images; files that each node has made itself always differ."""
    if image.file is not None and image.fetch and not image.identify:
        return
    groups: dict[str | None, list[str]] = {}
    for node, identity in held.items():
        groups.setdefault(identity, []).append(context.node_label(node))
    if len(groups) > 1:
        shown = "; ".join(f"{identity or 'unknown'} on {', '.join(nodes)}" for identity, nodes in groups.items())
        raise RunError(
            f"images: the nodes disagree on {image.reference}: {shown}",
            hint="remove it where it is old, so that it is fetched anew, or name it by its digest",
        )
