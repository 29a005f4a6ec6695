"""What a design costs: named lines with units, and the verdict on each limit. Floor 2; no formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BillLine:
    """One line of the bill of materials."""

    item: str
    count: int
    unit_usd: float
    total_usd: float
    power_w: float


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest rank of the fullest stage, by part, against the GPU's memory.

    `verdict` is "fits", "tight" (inside the model's own error band below the capacity) or "exceeds".
    """

    worst_stage: int
    worst_rank_bytes: float
    capacity_bytes: float
    verdict: str
    parts_bytes: Mapping[str, float]
    stages_bytes: tuple[float, ...]


@dataclass(frozen=True)
class LimitCheck:
    """A limit of the instance, what the design takes of it, and whether it is kept."""

    name: str
    value: float
    most: float
    unit: str
    kept: bool

    @property
    def slack(self) -> float:
        """Share of the limit that is left; negative where it is broken."""
        return (self.most - self.value) / self.most if self.most else 0.0


@dataclass(frozen=True)
class WorkloadEvaluation:
    """Figures of one workload under a design."""

    step_time_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    goodput: float
    time_to_train_s: float | None
    memory: Memory
    breakdown_s: Mapping[str, float]
    bubble_fraction: float
    checkpoint_save_s: float | None
    checkpoint_load_s: float | None
    interruption_s: float | None


@dataclass(frozen=True)
class Evaluation:
    """The exact model's judgement of a design.

    Attributes
    ----------
    objective : the objective as the user named it; `minimised` the value that the optimiser minimises.
    violations : every rule or limit that the design breaks, in words; empty for a design that may be bought.
    """

    objective: float
    minimised: float
    capex_usd: float
    power_w: float
    total_cost_usd: float | None
    bill_of_materials: tuple[BillLine, ...]
    workloads: Mapping[str, WorkloadEvaluation]
    limits: tuple[LimitCheck, ...]
    violations: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether the design breaks nothing."""
        return not self.violations

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)
