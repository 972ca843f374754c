"""Recipes of other tools, read into ours: what each key becomes, and what of it is lost.

Pure but for reading files. ``import_file`` reads one; nothing is written here.
"""

from __future__ import annotations

from recipe_toolkit.importers.formats import format_of
from recipe_toolkit.importers.imported import Imported, Recipe, import_file

__all__ = ["Imported", "Recipe", "format_of", "import_file"]
