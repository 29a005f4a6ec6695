"""What a solver says of the rows. Floor 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Outcome:
    """Answer of one solve.

    Attributes
    ----------
    solver : "cp-sat" or "highs".
    status : "optimal", "feasible" (a limit came first), "infeasible" or "unknown".
    bound : no design of the rows has an objective below this; infinite if the rows are infeasible.
    value : objective of the best assignment found; infinite if none was.
    chosen : value of each variable in that assignment, or None.
    solutions : further assignments met on the way, best last.
    wall_s : seconds that the solve took.
    """

    solver: str
    status: str
    bound: float
    value: float
    chosen: npt.NDArray[np.float64] | None
    solutions: tuple[npt.NDArray[np.float64], ...]
    wall_s: float
