"""Where an image is: in the engine's own store, or in a file that nodes see."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recipe_toolkit.cluster import Container
from recipe_toolkit.errors import InputError, Problem

# Runtimes that start from a file, and how such files end.
FILES = {"enroot": ".sqsh", "pyxis": ".sqsh", "apptainer": ".sif"}


@dataclass(frozen=True)
class Place:
    """An image: what it is called, after the profile's ``container.images``, and the file that holds it.

    ``cached``: whether the file is made from the reference.
    """

    reference: str
    file: str | None = None
    cached: bool = False


def located(container: Container, reference: str, field: str) -> Place:
    """Where the image is for the profile's runtime.

    Raises InputError, about ``field``, for a reference where the runtime needs a file, and the other way round.
    """
    reference = container.images.get(reference, reference)
    runtime, is_file = container.runtime, reference.startswith("/")
    suffix = FILES.get(runtime)
    if suffix is None:
        if is_file:
            message = f"{reference} is a file, and {runtime} takes the names of images"
            raise _refused(field, message, "container.images: {FILE: REPOSITORY@sha256:DIGEST} in the profile")
        return Place(reference)
    if is_file:
        return Place(reference, reference)
    if container.cache is None:
        message = f"{runtime} starts from a file, and the profile has none for {reference}"
        hint = f'container: {{images: {{"{reference}": /PATH{suffix}}}}}, or `cache: DIR` to fetch it into'
        raise _refused(field, message, hint)
    name = re.sub(r"[^A-Za-z0-9._-]", "+", reference)
    return Place(reference, f"{container.cache.rstrip('/')}/{name}{suffix}", cached=True)


def _refused(field: str, message: str, hint: str) -> InputError:
    file, _, rest = field.partition(":")
    return InputError([Problem(file, 0, 0, rest, message, hint)])


def pinned(reference: str) -> str:
    """The reference without its tag where it has a digest.

    The digest alone decides, and the library of podman, skopeo and apptainer refuses both
    (containers/image, docker/reference).
    """
    name, at, digest = reference.partition("@")
    if not at:
        return reference
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def registry(reference: str) -> tuple[str | None, str]:
    """(registry, the rest): as docker reads it, the first part is a registry if it holds . or :, or is localhost."""
    first, slash, rest = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return None, reference
