"""``recipe --help``."""

from __future__ import annotations

from recipe_toolkit.cli import SECTIONS, VERBS


def test_every_verb_is_listed_once_under_its_heading_in_one_column(recipe):
    done = recipe("--help", COLUMNS="100")
    sections = {block.splitlines()[0]: block.splitlines()[1:] for block in done.stdout.split("\n\n")}
    seen, columns = [], set()
    for title, names in SECTIONS.items():
        for line in sections[f"{title}:"]:
            verb = line.split()[0]
            assert verb in names
            seen.append(verb)
            columns.add(line.index(VERBS[verb][1]))
    assert sorted(seen) == sorted(VERBS)
    assert len(columns) == 1
