"""The certificate: incumbent, bound, gap, and who proved what. Floor 2."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Proof:
    """What one solver proved, in the objective as the user named it; `bound` None if it came to none in the time."""

    solver: str
    status: str
    bound: float | None
    wall_s: float


@dataclass(frozen=True)
class Certificate:
    """No design of the stated space, judged by the exact model, is better than `bound`.

    Attributes
    ----------
    value, bound : objective of the design, and the proven bound, as the user named them.
    gap : |value - bound| / |value|.
    proven_by : solvers that each proved the bound on the same rows.
    iterations, cuts, designs_evaluated : masters solved, Benders cuts laid, designs judged by the exact model.
    space_designs : joint choices of plan and placement that the master ranged over after arithmetic had excluded the
        rest, and `excluded` how many were looked at on the way.
    deterministic : whether the same call gives the same design again (one thread, no time limit hit).
    """

    value: float
    bound: float
    gap: float
    proven_by: tuple[str, ...]
    proofs: tuple[Proof, ...]
    iterations: int
    cuts: int
    designs_evaluated: int
    space_designs: int
    excluded: int
    wall_s: float
    first_design_s: float
    seed: int
    threads: int
    deterministic: bool

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)
