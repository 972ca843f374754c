"""Who copies which file from whom: for each link a chain of the nodes, so that each carries the model once.

A node hands on what it is still receiving (carry.py), so a chain takes the time of one copy, however long it is. Each
node receives and sends every byte at most once, and the chain follows the inventory: neighbours in it, such as the
nodes of a rack, are neighbours in the chain. Nothing is read or written here.
"""

from __future__ import annotations

import json
import sys


def schedule(sizes: dict, have: dict, links: int) -> dict:
    """Node -> a list for each of its links of [file, senders], in the order in which they are fetched.

    ``sizes``: file -> bytes. ``have``: node -> the files that it has, in the order of the chain. The first of the
    senders is the node before in the chain; the last has the file from the beginning. Raises ValueError if nobody has
    a file that somebody needs.
    """
    nowhere = sorted(name for name in sizes if all(name not in files for files in have.values()))
    if nowhere:
        raise ValueError(f"no node has these files as the manifest says: {', '.join(nowhere)}")
    plan = {node: [[] for _ in range(links)] for node in have}
    load, sent = [0] * links, dict.fromkeys(have, 0)
    # The largest first, each to the link that has least to carry: the links end together.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        lacking = [node for node in have if name not in have[node]]
        if not lacking:
            continue
        link = load.index(min(load))
        load[link] += sizes[name]
        head = min((node for node in have if name in have[node]), key=lambda node: sent[node])
        sent[head] += sizes[name]
        before = head
        for node in lacking:
            plan[node][link].append([name, list(dict.fromkeys((before, head)))])
            before = node
    return plan


def main(text: str) -> None:
    """Print the plan: ``{node: [[[file, bytes, [[sender, address], ...]], ...], ...]}``.

    ``lanes``: node -> the address of each lane. ``streams``: links a lane.
    """
    ask = json.loads(text)
    width = min(len(addresses) for addresses in ask["lanes"].values())
    try:
        plan = schedule(ask["sizes"], ask["have"], width * ask["streams"])
    except ValueError as error:
        sys.exit(str(error))
    told = {
        node: [
            [
                [name, ask["sizes"][name], [[sender, ask["lanes"][sender][link % width]] for sender in senders]]
                for name, senders in row
            ]
            for link, row in enumerate(rows)
        ]
        for node, rows in plan.items()
    }
    print(json.dumps({"plan": told, "changed": False}))
