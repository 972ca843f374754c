"""Checks of the lanes: the interfaces that carry RDMA, their addresses, and the devices behind them."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from recipe_toolkit.check.facts import Hca, Interface, Node
from recipe_toolkit.check.hardware import differing
from recipe_toolkit.check.model import Check, Finding, Skip, Unknown
from recipe_toolkit.plan.expect import Expect

_LINK_LOCAL = ipaddress.IPv4Network("169.254.0.0/16")
_IP_ICMP = 28  # bytes of an IPv4 header and an ICMP one
_ROCE = 58  # bytes that RoCE v2 adds to a payload of an RDMA MTU
_RDMA_MTUS = (4096, 2048, 1024, 512, 256)
_ALL_PAIRS = 17  # nodes up to which everybody is asked about everybody
_STEPS = 8  # neighbours on each side, with more


def chosen(expect: Expect, node: Node) -> list[Hca]:
    """The devices that the environment's list selects on this node, in its order. Raises Unknown."""
    hcas: Mapping[str, Hca] = node.know("hcas")
    found: list[Hca] = []
    for name in expect.hcas:
        if name in hcas:
            found.append(hcas[name])
        elif not _exact(expect):
            found += [hca for other, hca in sorted(hcas.items()) if other.startswith(name)]
    if not expect.hcas:
        found = [hca for hca in hcas.values() if any(name in expect.lanes for name in hca.netdevs)]
    return list(dict.fromkeys(found))


def _exact(expect: Expect) -> bool:
    nccl = expect.env.get("NCCL_IB_HCA", "")
    return nccl.startswith("=") or not nccl  # UCX's list holds whole names


def lanes(expect: Expect, node: Node) -> dict[str, str]:
    """Lane to its network (``""``: any): the profile's, else the Ethernet interfaces behind the chosen devices."""
    if expect.lanes:
        return dict(expect.lanes)
    return {name: "" for hca in chosen(expect, node) if hca.ethernet for name in hca.netdevs[:1]}


def lane_of(expect: Expect, hca: Hca) -> str:
    """The interface of a device: the one that is a lane, where several share it."""
    return next((name for name in hca.netdevs if name in expect.lanes), hca.netdevs[0] if hca.netdevs else "")


def _each(expect: Expect, node: Node) -> Iterator[tuple[str, Interface | None]]:
    interfaces = node.know("interfaces")
    wanted = lanes(expect, node)
    if not wanted:
        raise Skip("no lanes: no Ethernet device is named")
    for name in wanted:
        yield name, interfaces.get(name)


def _there(expect: Expect, node: Node) -> Iterator[Interface]:
    yield from (item for _, item in _each(expect, node) if item is not None)


def _up(expect: Expect, node: Node) -> Iterator[Finding]:
    for name, lane in _each(expect, node):
        if lane is None:
            yield Finding((node.name,), f"there is no {name}", f"{name}, up", name)
        elif not lane.up:
            yield Finding((node.name,), f"{name} is down", "up, with a carrier", name)


def _speed(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    known = [(node, lane) for node in nodes for lane in _there(expect, node) if lane.up]
    speeds = Counter(lane.speed for _, lane in known if lane.speed)
    wanted = expect.speed or (max(speeds, key=lambda speed: speeds[speed]) if speeds else None)
    if wanted is None:
        raise Skip("the interfaces tell no speed, and the profile wants none")
    for node, lane in known:
        if lane.speed != wanted:
            found = f"{lane.name} runs at {lane.speed} Mb/s" if lane.speed else f"{lane.name} tells no speed"
            yield Finding((node.name,), found, f"{wanted} Mb/s", lane.name, "failed" if lane.speed else "unknown")


def _mtu(expect: Expect, node: Node) -> Iterator[Finding]:
    for lane in _there(expect, node):
        if lane.mtu != expect.mtu:
            yield Finding((node.name,), f"{lane.name} has MTU {lane.mtu}", str(expect.mtu), lane.name)


def pings(expect: Expect, nodes: Sequence[Node]) -> dict[str, list[dict[str, object]]]:
    """The pings that each node is to send: every lane, every other node (of many, eight on each side)."""
    asked: dict[str, list[dict[str, object]]] = {}
    for place, node in enumerate(nodes):
        for step in range(1, len(nodes)):
            peer = nodes[(place + step) % len(nodes)]
            if len(nodes) > _ALL_PAIRS and _STEPS < step < len(nodes) - _STEPS:
                continue
            ways = (node.interfaces or {}, peer.interfaces or {})
            for name in lanes(expect, node) if node.interfaces and node.hcas is not None else ():
                ours, theirs = (way.get(name) for way in ways)
                if ours and theirs and ours.addresses and theirs.addresses:
                    ping = {"interface": name, "peer": str(theirs.addresses[0].ip), "to": peer.name}
                    asked.setdefault(node.name, []).append({**ping, "bytes": expect.mtu - _IP_ICMP})
    return asked


def _jumbo(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    if len(nodes) < 2:
        raise Skip("one node has no pairs")
    sent = [(node, ping) for node in nodes for ping in node.pings or ()]
    if not sent:
        raise Unknown("no pings were sent: no two nodes have an address on the same lane")
    for node, ping in sent:
        pair, lane = (node.name, str(ping["to"])), str(ping["interface"])
        if ping["rc"] is None or "not permitted" in str(ping["err"]):
            yield Finding(pair, str(ping["err"]), about=lane, status="unknown")
        elif ping["rc"] != 0:
            why = f": {ping['err']}" if ping["err"] else ""
            found = f"a packet of {expect.mtu} bytes does not pass from {pair[0]} to {pair[1]} over {lane}{why}"
            yield Finding(pair, found, f"{expect.mtu} bytes unsplit, each way", lane)


def _active_mtu(expect: Expect, node: Node) -> Iterator[Finding]:
    wanted = next((mtu for mtu in _RDMA_MTUS if mtu + _ROCE <= expect.mtu), _RDMA_MTUS[-1])
    for hca in chosen(expect, node):
        if not hca.ethernet or not hca.active:
            continue
        lane = lane_of(expect, hca)
        if hca.active_mtu is None:
            found = f"ibv_devinfo tells no active_mtu of {hca.name}: is it installed (ibverbs-utils)?"
            yield Finding((node.name,), found, about=lane, status="unknown")
        elif hca.active_mtu != wanted:
            yield Finding((node.name,), f"{hca.name} has active_mtu {hca.active_mtu}", str(wanted), lane)


def _addresses(expect: Expect, nodes: Sequence[Node]) -> Iterator[Finding]:
    held: dict[str, list[tuple[Node, ipaddress.IPv4Interface]]] = {}
    networks: dict[str, str] = {}
    for node in nodes:
        networks.update(lanes(expect, node))
        for lane in _there(expect, node):
            if len(lane.addresses) != 1 or lane.addresses[0].ip in _LINK_LOCAL:
                shown = ", ".join(map(str, lane.addresses)) or "no IPv4 address"
                yield Finding((node.name,), f"{lane.name} has {shown}", "one address, none of 169.254", lane.name)
            else:
                held.setdefault(lane.name, []).append((node, lane.addresses[0]))
    for name, found in held.items():
        yield from _odd(name, networks.get(name, ""), found)


def _odd(name: str, network: str, found: list[tuple[Node, ipaddress.IPv4Interface]]) -> Iterator[Finding]:
    """Addresses of a lane outside its network (without one: most nodes'), and those that two nodes have."""
    by_node = {node.name: address for node, address in found}
    wanted = ipaddress.ip_network(network, strict=False) if network else None
    for node, _, most in differing([node for node, _ in found], lambda item: by_node[item.name].network, wanted):
        said = f"in {most}" + ("" if network else ", as most nodes")
        yield Finding((node.name,), f"{name} has {by_node[node.name]}", said, name)
    for address, times in Counter(item.ip for item in by_node.values()).items():
        if times > 1:
            twins = tuple(name for name, item in by_node.items() if item.ip == address)
            yield Finding(twins, f"{name} has {address} on {len(twins)} nodes", "an address of its own each", name)


def _subnets(expect: Expect, node: Node) -> Iterator[Finding]:
    ours = lanes(expect, node)
    every = [
        (name, address)
        for name, item in sorted(node.know("interfaces").items())
        for address in item.addresses
        if name != "lo" and address.ip not in _LINK_LOCAL
    ]
    for index, (name, address) in enumerate(every):
        for other, beside in every[index + 1 :]:
            if other != name and {name, other} & set(ours) and address.network.overlaps(beside.network):
                about = "" if {name, other} <= set(ours) else name if name in ours else other
                found = f"{name} ({address}) and {other} ({beside}) share a network"
                yield Finding((node.name,), found, "a network for each lane", about)
    list(_each(expect, node))


def _not_management(expect: Expect, node: Node) -> Iterator[Finding]:
    routed, interfaces = node.know("routed"), node.know("interfaces")
    for hca in chosen(expect, node):
        for name in hca.netdevs:
            if name in routed:
                yield Finding((node.name,), f"{hca.name} is {name}, which has the default route", "a lane", name)
            elif name in interfaces and interfaces[name].wireless:
                yield Finding((node.name,), f"{hca.name} is {name}, which is wireless", "a lane", name)


def _hca_set(expect: Expect, node: Node) -> Iterator[Finding]:
    hcas, nccl = node.know("hcas"), "NCCL_IB_HCA" in expect.env
    interfaces = node.interfaces or {}
    for name in expect.hcas:
        same = [other for other in hcas if other.startswith(name) and other != name]
        if name in hcas:
            extra = [other for other in same if other not in expect.hcas]
            if extra and not _exact(expect):
                found = f"{name} is the beginning of {', '.join(extra)} too: NCCL takes both"
                yield Finding((node.name,), found, f"NCCL_IB_HCA: ={','.join(expect.hcas)}")
        elif not (same and not _exact(expect)) and (nccl or name not in interfaces):
            yield Finding((node.name,), f"there is no {name} (there is: {', '.join(sorted(hcas)) or 'none'})", name)
    for hca in chosen(expect, node):
        lane = lane_of(expect, hca)
        if not hca.active:
            yield Finding((node.name,), f"{hca.name} is {hca.state or 'in no state'}", "ACTIVE", lane)
        elif expect.lanes and hca.ethernet and lane not in expect.lanes:
            yield Finding((node.name,), f"{hca.name} is {lane or 'no interface'}, which is no lane", "a lane", lane)
    if not expect.hcas and not hcas:
        yield Finding((node.name,), "there is no RDMA device", "one behind each lane")


def _gid(expect: Expect, node: Node) -> Iterator[Finding]:
    said, interfaces = expect.env.get("NCCL_IB_GID_INDEX", ""), node.know("interfaces")
    for hca in chosen(expect, node):
        lane = lane_of(expect, hca)
        if not hca.ethernet or not hca.active:
            continue
        interface = interfaces.get(lane)
        held = {str(address.ip) for address in interface.addresses} if interface else set()
        right = [g.index for g in hca.gids if g.type == "RoCE v2" and g.address in held and g.ndev == lane]
        shown = ", ".join(map(str, right))
        if not right:
            yield Finding((node.name,), f"{hca.name} has no RoCE v2 GID of {lane}'s address", "one", lane)
        elif said.isdigit() and int(said) not in right:
            found = f"{hca.name} has the RoCE v2 GID of its IPv4 address at index {shown}"
            yield Finding((node.name,), found, f"NCCL_IB_GID_INDEX {said}", lane)


def _dev(expect: Expect, node: Node) -> Iterator[Finding]:
    dev: Mapping[str, bool] = node.know("dev")
    missing = [] if any("/uverbs" in path for path in dev) else ["uverbs*"]
    missing += [] if "/dev/infiniband/rdma_cm" in dev else ["rdma_cm"]
    if missing:
        yield Finding((node.name,), f"no {' and no '.join(missing)} in /dev/infiniband", "uverbs* and rdma_cm")
    elif expect.runtime != "docker":  # whose daemon is root
        closed = [path for path, ours in dev.items() if not ours and ("/uverbs" in path or "rdma_cm" in path)]
        if closed:
            yield Finding((node.name,), f"{', '.join(closed)} may not be opened by this user", "readable and writable")


def _ring(_: Expect, node: Node) -> Iterator[Finding]:
    if node.know("system").sysctl.get("net.ipv4.ip_forward") != "1":
        yield Finding((node.name,), "net.ipv4.ip_forward is 0", "1")
    rules = node.know("firewall")
    if rules.rc is None or (rules.rc and "permission" in rules.err.lower()):
        yield Finding((node.name,), f"iptables: {rules.why}", status="unknown")
    elif rules.ok and "-j ACCEPT" not in rules.out:
        yield Finding((node.name,), "DOCKER-USER accepts nothing between lanes", "an ACCEPT between the lanes")


def _rdma(expect: Expect) -> bool:
    return expect.rdma


_LANE = ("LANE.NOT_MGMT", "LANE.UP")
CHECKS = (
    Check(
        "LANE.NOT_MGMT", "node", "error",
        "no device that NCCL or UCX is told to use is the management interface, or wireless",
        "traffic over the slow network, and nobody says so",
        "/sys/class/infiniband, ip route, /sys/class/net",
        "take it out of NCCL_IB_HCA (or UCX_NET_DEVICES) in the profile's env",
        ("net", "rdma"), _rdma, node=_not_management, bind=True,
        source="https://github.com/spark-arena/sparkrun/pull/219",
    ),
    Check(
        "LANE.UP", "node", "error",
        "each lane is there and has a carrier",
        "a dead cable, or the wrong cage",
        "/sys/class/net (operstate, carrier)",
        "look at the cable and at the switch's port; ip link set LANE up",
        ("net", "rdma"), _rdma, node=_up, after=("LANE.NOT_MGMT",), bind=True,
    ),
    Check(
        "LANE.SPEED", "fleet", "error",
        "each lane runs at check.speed of the profile, or as fast as the others",
        "auto-negotiation at half the speed",
        "/sys/class/net (speed)",
        "set the speed at the switch; another cable",
        ("net", "rdma"), _rdma, fleet=_speed, after=_LANE, bind=True,
        source="https://github.com/NVIDIA/dgx-spark-playbooks",
    ),
    Check(
        "LANE.MTU", "node", "error",
        "each lane has check.mtu of the profile (9000), now and not only in a file",
        "large packets vanish: NCCL hangs where small ones pass",
        "/sys/class/net (mtu)",
        "ip link set LANE mtu MTU now, and mtu in netplan; or say in the profile what is meant: check: {mtu: N}",
        ("net", "rdma"), _rdma, node=_mtu, after=_LANE, bind=True,
        source="https://github.com/NVIDIA/nccl/issues/1524",
    ),
    Check(
        "LANE.SUBNETS", "node", "error",
        "no lane shares a network with another lane, the management or a bridge",
        "replies leave by the other interface: one of two twins loses everything",
        "ip address",
        "a network of its own for each lane",
        ("net", "rdma"), _rdma, node=_subnets, after=_LANE, bind=True,
        source="https://github.com/eugr/spark-vllm-docker/issues/270",
    ),
    Check(
        "LANE.ADDR", "fleet", "error",
        "each lane has one IPv4 address, in its network, that no other node has",
        "an address from autoconfiguration: timeouts in modify_qp",
        "ip address",
        "one static address a lane in netplan, with link-local: []",
        ("net", "rdma"), _rdma, fleet=_addresses, after=(*_LANE, "LANE.SUBNETS"), bind=True,
        source="https://github.com/getainode/ainode/pull/89",
    ),
    Check(
        "LANE.JUMBO", "pair", "error",
        "a packet as large as the MTU passes unsplit over each lane, between each two nodes, both ways",
        "a switch at 1500: NCCL hangs at the first large message",
        "ping -M do",
        "raise the MTU of the switch's ports above that of the lanes",
        ("net", "rdma"), _rdma, fleet=_jumbo, after=(*_LANE, "LANE.MTU", "LANE.SUBNETS", "LANE.ADDR"),
        bind=True,
        source="https://github.com/NVIDIA/nccl/pull/2135",
    ),
    Check(
        "HCA.SET", "node", "error",
        "each device of NCCL_IB_HCA or UCX_NET_DEVICES is there, active, a lane, and named without doubt",
        "a dead port paired with a live one, or a device that nobody meant",
        "/sys/class/infiniband",
        "list the active devices of the lanes, and begin NCCL_IB_HCA with = so that names are whole",
        ("net", "rdma"), _rdma, node=_hca_set, after=_LANE, bind=True,
        source="https://github.com/NVIDIA/nccl/pull/236",
    ),
    Check(
        "LANE.ACTIVE_MTU", "node", "error",
        "the RDMA MTU of each device is the largest that the lane's MTU holds (9000: 4096)",
        "RDMA in packets of 1024 bytes",
        "ibv_devinfo (active_mtu)",
        "take the lane down and up after its MTU has changed; install ibverbs-utils to see it",
        ("net", "rdma"), _rdma, node=_active_mtu, after=(*_LANE, "LANE.MTU", "HCA.SET"), bind=True,
        source="https://github.com/NVIDIA/dgx-spark-playbooks/pull/103",
    ),
    Check(
        "HCA.GID", "node", "error",
        "each device has the RoCE v2 GID of its lane's IPv4 address, at NCCL_IB_GID_INDEX where that is set",
        "connections that time out (error 12)",
        "/sys/class/infiniband (gids, gid_attrs)",
        "leave NCCL_IB_GID_INDEX unset (NCCL 2.21 and later choose), or take stray addresses off the lane",
        ("net", "rdma"), _rdma, node=_gid, after=(*_LANE, "LANE.SUBNETS", "LANE.ADDR", "HCA.SET"), bind=True,
        source="https://github.com/NVIDIA/nccl/issues/1333",
    ),
    Check(
        "RDMA.DEV", "node", "error",
        "/dev/infiniband has uverbs* and rdma_cm, and they may be opened",
        "NCCL takes TCP and says nothing",
        "/dev/infiniband",
        "modprobe -a ib_uverbs rdma_ucm, and udev's rules of rdma-core",
        ("rdma",), _rdma, node=_dev, bind=True,
        source="https://github.com/NVIDIA/nccl/issues/952",
    ),
    Check(
        "FWD.RING", "node", "error",
        "in a ring without a switch each node hands packets on",
        "looks like a dead cable",
        "net.ipv4.ip_forward, iptables -S DOCKER-USER; needs root",
        "sysctl net.ipv4.ip_forward=1, and ACCEPT between the lanes in DOCKER-USER",
        ("system", "forward"), lambda expect: expect.ring, node=_ring,
    ),
)  # fmt: skip
