"""Recipes of other tools, read into ours: what each key becomes, and what of it is lost.

``imported.import_file`` reads one; but for reading files the package does no I/O, save ``output``, which writes what
was made. ``formats.format_of`` tells a format quickly.
"""
