"""A design: the parallel plan, the placement and the purchase. Floor 2. Plain values, readable and comparable.

Hardware is named, not held: the names refer to the instance that the design answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

DIMENSIONS = ("tp", "cp", "pp", "dp")
"""Parallel dimensions that place ranks, innermost first in the global rank. Expert groups are carved out of them."""

TIERS = ("domain", "leaf", "pod")
"""Tiers of the network: NVLink domain, leaf (rail) group, and all that lies beyond the leaf."""


TEXT_DECISIONS = ("recompute", "schedule", "shard_within", "context_exchange")
"""Decisions of a plan whose values are words; those of all others are whole numbers."""


class Layout(NamedTuple):
    """How one parallel dimension is spread: ranks inside the domain x domains of a leaf group x leaf groups."""

    domain: int
    leaf: int
    pod: int

    @property
    def degree(self) -> int:
        return self.domain * self.leaf * self.pod


@dataclass(frozen=True)
class Plan:
    """The parallel plan of a workload; the terms are Megatron-LM's."""

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    virtual_stages: int
    micro_batch: int
    recompute: str
    zero: int
    schedule: str = "1f1b"
    shard_within: str = "group"
    expert_tp: int = 1
    context_exchange: str = "ring"

    @property
    def world(self) -> int:
        """Ranks: tp x cp x pp x dp. Expert parallelism adds none (its groups are carved from tp x cp x dp)."""
        return self.tp * self.cp * self.pp * self.dp

    def degree(self, dimension: str) -> int:
        return int(getattr(self, dimension))


@dataclass(frozen=True)
class Placement:
    """The layout of each dimension; what is not in the domain or the leaf group goes across the pod."""

    tp: Layout
    cp: Layout
    pp: Layout
    dp: Layout

    def layout(self, dimension: str) -> Layout:
        found = getattr(self, dimension)
        assert isinstance(found, Layout)
        return found

    def ranks_in(self, tier: str) -> int:
        """Product of the factors of all dimensions in one tier."""
        return prod(int(getattr(self.layout(dimension), tier)) for dimension in DIMENSIONS)


@dataclass(frozen=True)
class Network:
    """The scale-out network: kind of fabric, tiers of switches, switch, oversubscription at the leaf, and NIC.

    `kind` is "none" for a single server without a fabric; then tiers is 0 and switch and nic are empty.
    """

    kind: str
    tiers: int
    switch: str
    oversubscription: int
    nic: str


@dataclass(frozen=True)
class StoragePurchase:
    """Units of one storage product; `product` is empty and `units` 0 when the instance has no storage."""

    product: str
    units: int


@dataclass(frozen=True)
class Purchase:
    """What is bought (or, from an inventory, used)."""

    server: str
    servers: int
    network: Network
    storage: StoragePurchase
    checkpoint_interval_s: float


@dataclass(frozen=True)
class Design:
    """The three decisions, for one workload."""

    workload: str
    plan: Plan
    placement: Placement
    purchase: Purchase

    def to_document(self) -> dict[str, Any]:
        """JSON-able form; `from_document` reads it back exactly."""
        document = asdict(self)
        document["placement"] = {dimension: self.placement.layout(dimension)._asdict() for dimension in DIMENSIONS}
        return document

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Design:
        """The design that `to_document` wrote. KeyError or TypeError if the document is not of that form."""
        purchase = document["purchase"]
        return Design(
            workload=document["workload"],
            plan=Plan(**document["plan"]),
            placement=Placement(**{d: Layout(**document["placement"][d]) for d in DIMENSIONS}),
            purchase=Purchase(
                server=purchase["server"],
                servers=purchase["servers"],
                network=Network(**purchase["network"]),
                storage=StoragePurchase(**purchase["storage"]),
                checkpoint_interval_s=purchase["checkpoint_interval_s"],
            ),
        )
