"""What is not understood is refused by name, never guessed."""

from __future__ import annotations

from recipe_toolkit.errors import RecipeError


class UnknownModel(RecipeError):
    """A model, a flag or a GPU whose memory is not known; the message says which part."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
