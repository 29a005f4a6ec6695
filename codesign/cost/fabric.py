"""Switches and cables of the scale-out network, counted. Floor 3.

In: how many servers, how many NIC ports on how many rails each has, and which fabric is built of which
switch. Out: switches of each tier, links between each pair of tiers, how many servers share a leaf group and
a pod. Counts only: prices, watts and bandwidths are put on them elsewhere.

A network is built of groups. A *leaf group* is what a server plugs into: one leaf switch (fat-tree), or one
leaf for each rail (rail-optimised: leaf r serves rail r of every server in the group). Rail-only is an
independent fabric for each rail, with nothing between them. With three tiers, leaf groups and their spines
form *pods*, which the core joins.

What a switch and its wiring obey, at every tier:

- Down ports ``d = floor(k s / (1 + s))`` and up ports ``u = k - d`` for ``s:1`` on ``k`` ports: rounding
  never leaves a switch more oversubscribed than asked.
- A switch has equally many links to each switch of its group in the tier above, so the number of those
  divides the up ports. That is why three scalable units of 32 servers take 16 spines and not 12.
- Every leaf, and every spine of a full pod, has all of its up ports wired, used or not.
- The last pod may be partly filled: it gets its own leaves, and spines and uplinks in proportion. The core is
  built for whole pods.

Source: the counting rules behind public reference architectures (NVIDIA DGX SuperPOD for H100, B200 and B300;
their tables are test data); three tiers at 1:1 after Al-Fares et al., "A scalable, commodity data center
network architecture", SIGCOMM 2008, section 3; rail-only after Wang et al., "Rail-only: a low-cost
high-performance network for training LLMs with trillion parameters", 2023. How a partly filled third tier is
rounded is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Kind = Literal["rail-optimized", "fat-tree", "rail-only"]

KINDS: tuple[Kind, ...] = get_args(Kind)
TIERS: tuple[int, ...] = (1, 2, 3)

# Not zero, which would pass for a network that costs nothing.
NO_COUNT = -1


@dataclass(frozen=True)
class FabricCounts:
    """A network for each entry of an array of server counts; every field has that array's shape.

    Where ``feasible`` is false the counts are ``NO_COUNT`` (-1); the last three fields hold there too.

    Attributes
    ----------
    leaf, spine, core
        Switches of each tier, over all rails' fabrics and all planes. A single switch counts as a leaf.
    host_links, leaf_spine_links, spine_core_links
        Links at the port speed of the switch; with planes, each plane's links count one by one.
    tiers
        Tiers of switches: 1, 2 or 3.
    feasible
        Whether this fabric reaches that many servers.
    leaf_nodes
        Servers that share a leaf group when it is full. At least 1: a server reaches itself over no leaf.
    pod_nodes
        Servers that reach each other without the core when the pod is full; with one or two tiers,
        ``limit_nodes``.
    limit_nodes
        Most servers that this fabric reaches; 0 where it cannot hold one.
    """

    leaf: Counts
    spine: Counts
    core: Counts
    host_links: Counts
    leaf_spine_links: Counts
    spine_core_links: Counts
    tiers: Counts
    feasible: npt.NDArray[np.bool_]
    leaf_nodes: Counts
    pod_nodes: Counts
    limit_nodes: Counts

    @property
    def switches(self) -> Counts:
        """Switches of all tiers; ``NO_COUNT`` where not feasible."""
        return np.where(self.feasible, self.leaf + self.spine + self.core, NO_COUNT)

    @property
    def switch_links(self) -> Counts:
        """Links between switches; ``NO_COUNT`` where not feasible."""
        return np.where(self.feasible, self.leaf_spine_links + self.spine_core_links, NO_COUNT)


class _Shape(NamedTuple):
    """One fabric in terms of leaf groups; the whole network is ``copies`` of it."""

    copies: int
    """Independent equal fabrics: planes, times rails where each rail is a fabric of its own."""
    group_leaves: int
    """Leaf switches of one leaf group."""
    server_ports: int
    """Ports of one server in this fabric."""
    leaf_ports: int
    """Ports of one server on one leaf."""
    spans_leaves: bool
    """Whether a server is spread over leaf groups (a fat-tree whose leaf is smaller than a server)."""
    extra_ports: int
    """Ports in this fabric that are not servers'."""


def split_ports(switch_ports: int, oversubscription: int = 1) -> tuple[int, int]:
    """Down and up ports of a switch at ``oversubscription``:1.

    Parameters
    ----------
    switch_ports
        Ports of the switch at the speed in question, at least 2.
    oversubscription
        Bandwidth down over bandwidth up, at least 1.

    Raises
    ------
    ValueError
        If either is below its least value.
    """
    _at_least("switch_ports", switch_ports, 2)
    _at_least("oversubscription", oversubscription, 1)
    down = switch_ports * oversubscription // (1 + oversubscription)
    return down, switch_ports - down


def count(
    nodes: npt.ArrayLike,
    *,
    kind: Kind,
    switch_ports: int,
    rails: int,
    tiers: int | None = None,
    oversubscription: int = 1,
    spine_oversubscription: int = 1,
    ports_per_rail: int = 1,
    planes: int = 1,
    extra_endpoints: int = 0,
) -> FabricCounts:
    """Count the switches and links of a network for each number of servers.

    Parameters
    ----------
    nodes
        Servers, integers of at least 1, any shape.
    kind
        ``"rail-optimized"``, ``"fat-tree"`` or ``"rail-only"``.
    switch_ports
        Ports of the one switch type that is used, at the speed of one link (of one plane).
    rails
        Rails of a server. A fat-tree only needs ``rails * ports_per_rail``, the NIC ports of a server.
    tiers
        1 (one switch; for rail-only, one a rail), 2 or 3; None takes the least number that reaches, for each
        entry.
    oversubscription, spine_oversubscription
        ``s`` of ``s:1`` at the leaf (two or three tiers) and at the spine (three tiers).
    ports_per_rail
        NIC ports that a server has on each rail: 18 for a rack of 72 GPUs and 72 NICs on 4 rails.
    planes
        Equal planes into which each NIC port is divided; every plane is a whole fabric at its share of the
        speed.
    extra_endpoints
        Ports of each plane that are not servers', as of a fabric manager; spread over the rails.

    Returns
    -------
    FabricCounts
        Arrays in the shape of ``nodes``.

    Raises
    ------
    ValueError
        For an unknown kind or number of tiers, a parameter below its least value, or ``nodes`` that are not
        integers.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    if tiers is not None and tiers not in TIERS:
        raise ValueError(f"tiers is {tiers!r}; expected 1, 2, 3 or None")
    for name, value, least in (
        ("switch_ports", switch_ports, 2),
        ("rails", rails, 1),
        ("oversubscription", oversubscription, 1),
        ("spine_oversubscription", spine_oversubscription, 1),
        ("ports_per_rail", ports_per_rail, 1),
        ("planes", planes, 1),
        ("extra_endpoints", extra_endpoints, 0),
    ):
        _at_least(name, value, least)
    servers = _server_counts(nodes)
    leaf_split = split_ports(switch_ports, oversubscription)
    spine_split = split_ports(switch_ports, spine_oversubscription)
    shape = _shape(kind, leaf_split[0], rails, ports_per_rail, planes, extra_endpoints)
    host_links = planes * (servers * rails * ports_per_rail + extra_endpoints)

    def with_tiers(number: int) -> FabricCounts:
        if number == 1:
            return _single_switch(servers, host_links, shape, switch_ports)
        return _leaf_spine(servers, host_links, shape, switch_ports, leaf_split, spine_split if number == 3 else None)

    if tiers is not None:
        return with_tiers(tiers)
    chosen = with_tiers(TIERS[0])
    for number in TIERS[1:]:
        chosen = _first_feasible(chosen, with_tiers(number))
    return chosen


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; expected at least {least}")


def _server_counts(nodes: npt.ArrayLike) -> Counts:
    found = np.asarray(nodes)
    if not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"nodes has type {found.dtype}; expected integers")
    if found.size and found.min() < 1:
        raise ValueError(f"nodes holds {found.min()}; expected at least 1")
    return found.astype(np.int64)


def _shape(kind: Kind, down: int, rails: int, ports_per_rail: int, planes: int, extra: int) -> _Shape:
    """How servers plug into one fabric of this kind, whose leaves have ``down`` ports for them."""
    nics = rails * ports_per_rail
    match kind:
        case "rail-optimized":
            return _Shape(planes, rails, nics, ports_per_rail, False, extra)
        case "rail-only":
            return _Shape(planes * rails, 1, ports_per_rail, ports_per_rail, False, -(-extra // rails))
        case "fat-tree":
            # Whole servers to a leaf where they fit, so that leaf_nodes of them really share each full leaf.
            return _Shape(planes, 1, nics, min(nics, down), nics > down, extra)


def _single_switch(servers: Counts, host_links: Counts, shape: _Shape, switch_ports: int) -> FabricCounts:
    limit = max(0, (switch_ports - shape.extra_ports) // shape.server_ports)
    leaf = np.full_like(servers, shape.copies)
    none = np.zeros_like(servers)
    return _masked(
        (leaf, none, none, host_links, none, none),
        servers <= limit,
        1,
        max(1, switch_ports // shape.server_ports),
        limit,
        limit,
    )


def _leaf_spine(
    servers: Counts,
    host_links: Counts,
    shape: _Shape,
    switch_ports: int,
    leaf_split: tuple[int, int],
    spine_split: tuple[int, int] | None,
) -> FabricCounts:
    """Two tiers, or three where the split of the spine's ports is given."""
    down, up = leaf_split
    group_ports = shape.group_leaves * down
    group_nodes = down // shape.leaf_ports
    if spine_split is None:
        pod_groups = switch_ports // shape.group_leaves  # each spine has a link to every leaf
        most_groups = pod_groups
    else:
        pod_groups = spine_split[0] // shape.group_leaves
        most_groups = pod_groups * switch_ports  # each core switch has a link to every pod

    def reach(groups: int) -> int:
        by_port = max(0, groups * group_ports - shape.extra_ports) // shape.server_ports
        return by_port if shape.spans_leaves else min(by_port, groups * group_nodes)

    limit = reach(most_groups)
    feasible = servers <= limit
    counted = np.where(feasible, servers, 1)
    groups = _ceil(counted * shape.server_ports + shape.extra_ports, group_ports)
    if not shape.spans_leaves:
        groups = np.maximum(groups, _ceil(counted, max(1, group_nodes)))
    leaf = groups * shape.group_leaves

    if spine_split is None or pod_groups == 0:
        # Leaves that do not fit are masked below; the bound only keeps the look-up inside its table.
        spine = _least_divisor(up, np.minimum(_ceil(leaf * up, switch_ports), up))
        core = spine_core = np.zeros_like(leaf)
    else:
        spine, core, spine_core = _pods(leaf, pod_groups * shape.group_leaves, switch_ports, up, spine_split[1])
    each = (leaf, spine, core, leaf * up, spine_core)
    leaf, spine, core, leaf_spine, spine_core = (shape.copies * one for one in each)

    pod = limit if spine_split is None else min(limit, _whole_pod(shape, pod_groups, group_ports, group_nodes))
    return _masked(
        (leaf, spine, core, host_links, leaf_spine, spine_core),
        feasible,
        2 if spine_split is None else 3,
        max(1, group_nodes) if not shape.spans_leaves else 1,
        pod,
        limit,
    )


def _whole_pod(shape: _Shape, pod_groups: int, group_ports: int, group_nodes: int) -> int:
    if shape.spans_leaves:
        return max(1, pod_groups * group_ports // shape.server_ports)
    return pod_groups * group_nodes


def _pods(leaf: Counts, pod_leaves: int, switch_ports: int, up: int, spine_up: int) -> tuple[Counts, Counts, Counts]:
    """Spines, core switches and the links between them, for leaves in pods of at most ``pod_leaves``.

    Think of ``up`` lanes: lane j is the j-th uplink of every leaf and what stands above it. A spine of a full
    pod is one lane; a spine of a small last pod carries several, as does a core switch in which few pods
    meet.
    """
    pods = _ceil(leaf, pod_leaves)
    full = pods - 1
    last_leaves = leaf - full * pod_leaves

    # Core switches of one lane; each has spine_up / lane_cores links to the lane's spine in every full pod.
    lane_cores = _least_divisor(spine_up, np.minimum(_ceil(pods * spine_up, switch_ports), spine_up))
    core_lanes = _greatest_divisor(up, np.maximum(1, switch_ports // (pods * spine_up)))
    core = up * lane_cores // core_lanes

    # Uplinks of a lane in the last pod: in proportion to its leaves, and equally many to each core switch.
    last_up = lane_cores * _ceil(last_leaves * spine_up, pod_leaves * lane_cores)
    # Up ports decide how many lanes a spine can carry: those down are taken in no greater proportion.
    spine_lanes = _greatest_divisor(up, spine_up // last_up)
    spine = full * up + up // spine_lanes
    return spine, core, up * (full * spine_up + last_up)


def _ceil(numerator: Counts, denominator: int | Counts) -> Counts:
    return -(-numerator // denominator)


def _divisors(number: int) -> Counts:
    return np.array([each for each in range(1, number + 1) if number % each == 0], dtype=np.int64)


def _least_divisor(number: int, least: Counts) -> Counts:
    """The least divisor of ``number`` that is at least ``least`` (1 to ``number``)."""
    divisors = _divisors(number)
    return np.take(divisors, np.searchsorted(divisors, least, side="left"))


def _greatest_divisor(number: int, most: Counts) -> Counts:
    """The greatest divisor of ``number`` that is at most ``most`` (at least 1)."""
    divisors = _divisors(number)
    return np.take(divisors, np.searchsorted(divisors, most, side="right") - 1)


def _masked(
    counts: tuple[Counts, ...],
    feasible: npt.NDArray[np.bool_],
    tiers: int,
    leaf_nodes: int,
    pod_nodes: int,
    limit_nodes: int,
) -> FabricCounts:
    """The six counts without those of server counts out of reach, and the constants, in one shape."""
    leaf, spine, core, host_links, leaf_spine, spine_core = (np.where(feasible, each, NO_COUNT) for each in counts)

    def everywhere(value: int) -> Counts:
        return np.full(feasible.shape, value, dtype=np.int64)

    return FabricCounts(
        leaf=leaf,
        spine=spine,
        core=core,
        host_links=host_links,
        leaf_spine_links=leaf_spine,
        spine_core_links=spine_core,
        tiers=everywhere(tiers),
        feasible=np.asarray(feasible),
        leaf_nodes=everywhere(leaf_nodes),
        pod_nodes=everywhere(pod_nodes),
        limit_nodes=everywhere(limit_nodes),
    )


def _first_feasible(first: FabricCounts, second: FabricCounts) -> FabricCounts:
    """``first`` where it is feasible, else ``second``."""
    picked = {
        field.name: np.where(first.feasible, getattr(first, field.name), getattr(second, field.name))
        for field in fields(FabricCounts)
    }
    return FabricCounts(**picked)
