"""Who copies which file from whom, and in what order, so that every lane carries something all the time.

A node that has a file serves it, so the time is that of one copy plus a few files' time that grows with the
logarithm of the number of nodes. Nothing is read or written here: the copying is acted out with the files' sizes,
every link as fast as every other, and the order in which things happened is the plan. It is an order that can be
kept: each file comes from a node that has it earlier in the plan.
"""

from __future__ import annotations

import heapq
import json
import sys


class Network:
    """The state of the play: who has what, and whose links are free.

    A link is (node, lane, stream); each can send one file and receive one at a time.
    """

    def __init__(self, sizes: dict, have: dict, links: int) -> None:
        self.sizes = sizes
        self.have = {node: set(files) & set(sizes) for node, files in have.items()}
        self.wanted = {node: set(sizes) - files for node, files in self.have.items()}
        self.copies = {name: sum(name in files for files in self.have.values()) for name in sizes}
        self.receiving = {(node, link): False for node in have for link in range(links)}
        self.sending = {(node, link): False for node in have for link in range(links)}
        self.sent = dict.fromkeys(have, 0)

    def choose(self, node: str, link: int) -> tuple | None:
        """The file that ``node`` had best fetch over ``link`` now, and from whom: the one that fewest nodes have."""
        free = [other for other in self.have if not self.sending[other, link] and other != node]
        best = None
        for name in self.wanted[node]:
            rank = (self.copies[name], -self.sizes[name], name)
            if best is None or rank < best[0]:
                holders = [other for other in free if name in self.have[other]]
                if holders:
                    best = (rank, name, min(holders, key=lambda other: (self.sent[other], other)))
        return best and best[1:]

    def begin(self, node: str, link: int, name: str, sender: str) -> None:
        """Both ends of the link are busy from now on."""
        self.wanted[node].discard(name)
        self.copies[name] += 1
        self.receiving[node, link] = self.sending[sender, link] = True
        self.sent[sender] += self.sizes[name]

    def end(self, node: str, link: int, name: str, sender: str) -> None:
        """The file is there, and its new holder can serve it."""
        self.have[node].add(name)
        self.receiving[node, link] = self.sending[sender, link] = False


def schedule(sizes: dict, have: dict, links: int) -> tuple:
    """The plan, and how long it takes in bytes over one link.

    ``sizes``: file -> bytes. ``have``: node -> the files that it has. Returns node -> a list for each of its links of
    [file, sender], in order. Raises ValueError if nobody has a file that somebody needs.
    """
    network = Network(sizes, have, links)
    nowhere = sorted(name for name, copies in network.copies.items() if copies == 0)
    if nowhere:
        raise ValueError(f"no node has these files as the manifest says: {', '.join(nowhere)}")
    plan = {node: [[] for _ in range(links)] for node in have}
    now, events, number = 0, [], 0
    while True:
        for node in sorted(network.have, key=lambda node: (len(network.have[node]), node)):
            for link in range(links):
                pick = None if network.receiving[node, link] else network.choose(node, link)
                if pick:
                    network.begin(node, link, *pick)
                    plan[node][link].append(list(pick))
                    number += 1
                    heapq.heappush(events, (now + max(1, sizes[pick[0]]), number, (node, link, *pick)))
        if not events:
            return plan, now
        now = events[0][0]
        while events and events[0][0] == now:
            network.end(*heapq.heappop(events)[2])


def main(text: str) -> None:
    """Print the plan with addresses in place of senders: ``{node: [[[file, sender, address], ...], ...]}``.

    ``lanes``: node -> the address of each lane. ``streams``: links a lane.
    """
    ask = json.loads(text)
    width = min(len(addresses) for addresses in ask["lanes"].values())
    try:
        plan, span = schedule(ask["sizes"], ask["have"], width * ask["streams"])
    except ValueError as error:
        sys.exit(str(error))
    told = {
        node: [
            [[name, sender, ask["lanes"][sender][link % width]] for name, sender in row]
            for link, row in enumerate(rows)
        ]
        for node, rows in plan.items()
    }
    print(json.dumps({"plan": told, "span_bytes": span, "changed": False}))
