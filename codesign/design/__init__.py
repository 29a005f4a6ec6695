"""Answers as data: the three decisions made, where ranks stand, what is bought. Floor 2; no formulas, no solver."""

from codesign.design.design import (
    DIMENSIONS,
    TEXT_DECISIONS,
    TIERS,
    Design,
    Layout,
    Network,
    Placement,
    Plan,
    Purchase,
    StoragePurchase,
)

__all__ = [
    "DIMENSIONS",
    "TEXT_DECISIONS",
    "TIERS",
    "Design",
    "Layout",
    "Network",
    "Placement",
    "Plan",
    "Purchase",
    "StoragePurchase",
]
