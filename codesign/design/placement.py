"""Rank -> (server, GPU): the explicit map behind a placement. Floor 2. In: plan and placement. Out: integer arrays.

Ranks are numbered as Megatron-LM numbers them by default, tp fastest, then cp, then dp, then pp. Each coordinate is
split by its layout into a digit inside the domain, one inside the leaf group and one across; the digits of all
dimensions in a tier, tp fastest, give the GPU in the server, the server in its leaf group, and the leaf group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.design.design import DIMENSIONS, Placement, Plan

RANK_ORDER = ("tp", "cp", "dp", "pp")
"""Fastest first: Megatron-LM's default order "tp-cp-ep-dp-pp"."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RankMap:
    """Where each rank stands; all arrays have shape (world,).

    Attributes
    ----------
    coordinates : dimension -> index of the rank along it.
    server, gpu, leaf_group : the server, the GPU inside it, and the leaf group of the server.
    """

    coordinates: dict[str, Indices]
    server: Indices
    gpu: Indices
    leaf_group: Indices

    def spans(self, dimensions: tuple[str, ...]) -> tuple[int, int, int]:
        """Factors that the widest group over some dimensions really has: per domain, per leaf group, leaf groups.

        A group is the set of ranks that differ in `dimensions` only. Returned are the ranks that share a server, the
        servers that share a leaf group, and the leaf groups of the group that spans most of them.
        """
        key = np.zeros(len(self.server), dtype=np.int64)
        for dimension in RANK_ORDER:
            if dimension not in dimensions:
                coordinate = self.coordinates[dimension]
                key = key * (int(coordinate.max(initial=0)) + 1) + coordinate
        return self._widest(key)

    def _widest(self, key: Indices) -> tuple[int, int, int]:
        ranks = int(np.bincount(key).max())
        servers = _most_different(key, self.server)
        leaves = _most_different(key, self.leaf_group)
        return ranks // servers, servers // leaves, leaves

    def expert_spans(self, ep: int, expert_tp: int = 1) -> tuple[tuple[int, int, int], ...]:
        """Factors, as of `spans`, of the widest groups of three kinds.

        Ranks that share each of their experts: `expert_tp` consecutive ranks of a stage, in rank order. Expert-parallel
        groups: the ranks at the same place of `ep` such blocks that follow each other. Ranks that hold the same: those
        at the same place of each block of `ep x expert_tp` (Megatron-LM, "parallel folding").
        """
        stage = self.coordinates["pp"]
        block = np.arange(len(stage)) % (len(stage) // (int(stage.max(initial=0)) + 1))
        ranks, both = int(block.max(initial=0)) + 1, ep * expert_tp
        return (
            self._widest(stage * ranks + block // expert_tp),
            self._widest(stage * ranks + block // both * expert_tp + block % expert_tp),
            self._widest(stage * ranks + block % both),
        )

    def boundary_tiers(self, pp: int) -> Indices:
        """Highest tier that a transfer from stage i to the next crosses (0 domain, 1 leaf, 2 pod); shape (pp,).

        The last entry is the way from the last stage back to the first, which interleaved schedules take.
        """
        stage = self.coordinates["pp"]
        world = len(stage)
        following = (np.arange(world) + world // pp) % world
        tier = np.where(
            self.server == self.server[following], 0, np.where(self.leaf_group == self.leaf_group[following], 1, 2)
        )
        found = np.zeros(pp, dtype=np.int64)
        np.maximum.at(found, stage, tier)
        return found


def _most_different(key: Indices, place: Indices) -> int:
    """Most different places that the ranks of one key stand at."""
    pairs = np.sort(key * (int(place.max(initial=0)) + 1) + place)  # sorting: a hash table takes four times as long
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return int(np.bincount(pairs // (int(place.max(initial=0)) + 1)).max())


def rank_map(plan: Plan, placement: Placement) -> RankMap:
    """The map of a regular placement: one block of servers in each leaf group."""
    ranks = np.arange(plan.world, dtype=np.int64)
    coordinates: dict[str, Indices] = {}
    rest = ranks
    for dimension in RANK_ORDER:
        degree = plan.degree(dimension)
        coordinates[dimension] = rest % degree
        rest = rest // degree
    digits = {tier: np.zeros_like(ranks) for tier in ("domain", "leaf", "pod")}
    weight = {"domain": 1, "leaf": 1, "pod": 1}
    for dimension in DIMENSIONS:
        layout = placement.layout(dimension)
        rest = coordinates[dimension]
        for tier, factor in zip(("domain", "leaf", "pod"), layout, strict=True):
            digits[tier] += (rest % factor) * weight[tier]
            weight[tier] *= factor
            rest = rest // factor
    return RankMap(
        coordinates=coordinates,
        server=digits["pod"] * weight["leaf"] + digits["leaf"],
        gpu=digits["domain"],
        leaf_group=digits["pod"],
    )
