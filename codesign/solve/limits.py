"""What a solve may take, and how sure it must be. Floor 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Limits:
    """Limits of one solve.

    Attributes
    ----------
    time_s : wall-clock seconds; when they are over, the best verified design is returned with the gap proven so far.
    gap : relative gap that is asked for; 0 asks for the optimum of the exact model.
    seed, threads : of the solvers. One thread is deterministic unless the time runs out.
    proof : "double" has the bound proven by CP-SAT and by HiGHS on the same rows; "single" by CP-SAT only.
    tie : designs whose objective is within this relative distance of the best count as equal: the cheaper one wins.
    """

    time_s: float = 300.0
    gap: float = 1e-3
    seed: int = 0
    threads: int = 1
    proof: Literal["single", "double"] = "double"
    tie: float = 1e-9

    def __post_init__(self) -> None:
        if not self.time_s > 0:
            raise ValueError(f"time_s must be above 0, got {self.time_s}")
        if not 0 <= self.gap < 1:
            raise ValueError(f"gap must be at least 0 and below 1, got {self.gap}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.proof not in ("single", "double"):
            raise ValueError(f"proof must be 'single' or 'double', got {self.proof!r}")
        if not 0 <= self.tie < 1:
            raise ValueError(f"tie must be at least 0 and below 1, got {self.tie}")
