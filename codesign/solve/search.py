"""From an instance to what could still be better than the best design known: search, exclude, close. Floor 5.

In: an instance, limits. Out: the incumbent, a bound that arithmetic proves, and the plans that are still open.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.errors import SolverError
from codesign.exact.evaluate import Judge
from codesign.expr import Relation
from codesign.solve.candidates import Candidates, Stopped
from codesign.solve.limits import Limits
from codesign.solve.progress import Cancel, Listener, Progress
from codesign.solve.subproblem import Judged, Subproblem
from codesign.spec.instance import Instance

Floats = npt.NDArray[np.float64]

WIDTHS = (64, 512, 4096, 32768)
"""Beam widths of the search, tried in turn until a design is found."""
FIRST_JUDGED = 12
"""Designs of the beam that are judged by the exact model."""
CLOSED_AT_FIRST = 256
"""Plans closed before the first master, most promising first."""
ROWS_A_CHUNK = 2048
"""Plans whose purchases are listed at once."""
SUMMED = 1e-9
"""Relative distance by which one sum of doubles, added up in another order, may come out higher."""
TRUST = 1e-5
"""Relative distance by which a proven bound may exceed a verified design before it is a fault: the rounding of rows."""


class Search:
    """State of one solve.

    Attributes
    ----------
    incumbent : the best design that the exact model has judged.
    arithmetic : a bound that our own arithmetic proves; `bound`: the best known, from solvers too.
    thorough : plans are excluded only if they cannot beat the incumbent; else, if they cannot by the asked gap.
    """

    def __init__(self, instance: Instance, limits: Limits, progress: Listener | None, cancel: Cancel | None) -> None:
        self.started = time.perf_counter()
        self.instance, self.limits = instance, limits
        self._progress, self._cancel = progress, cancel
        self.model = CostModel(instance)
        self.judge = Judge(instance)
        self.candidates = Candidates(self.model, self.stop)
        self.subproblem = Subproblem(self.model, self.judge, self.candidates.hardware, self.candidates.storage)
        self.incumbent: Judged | None = None
        self.bound = self.arithmetic = 0.0
        self.first_s = float("inf")
        self.thorough = True
        self.cuts = 0

    # -- clock and news

    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def stop(self) -> bool:
        return self.elapsed() > self.limits.time_s or bool(self._cancel)

    def left_s(self) -> float:
        return max(0.05, self.limits.time_s - self.elapsed())

    def tell(self, phase: str) -> None:
        if self._progress is None:
            return
        value = None if self.incumbent is None else self.model.to_user(self.incumbent.value)
        bound = self.model.to_user(self.bound) if self.bound > 0 else None
        gap = None if value is None or bound is None else abs(value - bound) / abs(value)
        self._progress(Progress(self.elapsed(), phase, value, bound, gap, self.cuts, self.judge.evaluated))

    # -- the incumbent

    def offer(self, judged: Judged | None) -> None:
        if judged is None or not judged.evaluation.feasible:
            return
        if self.incumbent is None or judged.value < self.incumbent.value:
            if self.incumbent is None:
                self.first_s = self.elapsed()
            self.incumbent = judged
            if self.bound > judged.value * (1.0 + TRUST):
                raise SolverError(
                    f"a verified design at {judged.value!r} lies below the proven bound {self.bound!r} "
                    "(a fault of codesign: please report the instance)"
                )

    @property
    def best(self) -> float:
        return np.inf if self.incumbent is None else self.incumbent.value

    @property
    def cutoff(self) -> float:
        """Floors up to this are kept; in a thorough run the plan of the incumbent is among them, however sums round."""
        asked = self.best * (1.0 + SUMMED) if self.thorough else self.target
        return min(asked, float(np.finfo(np.float64).max))

    @property
    def target(self) -> float:
        """The bound that would satisfy the asked gap."""
        return self.best * (1.0 - self.limits.gap)

    # -- phases

    def feasible(self) -> bool:
        """Whether there is a design; raises `Stopped` if the time runs out before that is known."""
        self.open_plans(first_only=True)
        return self.incumbent is not None

    def open_plans(self, first_only: bool = False) -> tuple[Relation, Floats]:
        """Plans that could still be better than the incumbent; no incumbent after this: no design at all."""
        self.tell("searching")
        if not (len(self.candidates.hardware) and len(self.candidates.storage)):
            return self.candidates.hardware, np.zeros(0)
        self.first_designs()
        if first_only and self.incumbent is not None:
            return self.candidates.hardware, np.zeros(0)
        plans, floors = self.exclude()
        plans, floors = self.close(plans, floors, CLOSED_AT_FIRST)
        if self.incumbent is None:
            plans, floors = self.close(plans, floors, len(plans))
        return plans, floors

    def first_designs(self) -> None:
        """A first incumbent."""
        for width in WIDTHS:
            rows, lowest = self.candidates.search(width)
            if np.isfinite(lowest):
                self.raise_bound(lowest)
            full, relaxed = self.subproblem.completions(rows.where(np.arange(min(len(rows), 512), dtype=np.intp)))
            order = np.argsort(relaxed, kind="stable")
            judged = 0
            for index in order:
                if judged >= FIRST_JUDGED or relaxed[index] >= self.best:
                    break
                self.offer(self.subproblem.judge(full, int(index), float(relaxed[index])))
                judged += 1
                self.tell("searching")
            if self.incumbent is not None or self.stop():
                return

    def exclude(self) -> tuple[Relation, Floats]:
        """Plans and placements that could still be better than the incumbent."""
        self.tell("excluding")
        plans, floors = self.candidates.below(self.cutoff)
        plans, floors = self._with_purchases(plans, floors)
        order = np.argsort(floors, kind="stable")
        if len(order):
            self.raise_bound(float(floors[order[0]]))
        return plans.where(order), floors[order]

    def _with_purchases(self, plans: Relation, floors: Floats) -> tuple[Relation, Floats]:
        """Floors over the purchases that really go with each plan, in chunks; what they exclude is left out."""
        floors = floors.copy()
        for start in range(0, len(plans), ROWS_A_CHUNK):
            if self.stop():
                raise Stopped
            part = np.arange(start, min(start + ROWS_A_CHUNK, len(plans)), dtype=np.intp)
            floors[part] = np.maximum(floors[part], self.subproblem.floors(plans.where(part)))
        keep = floors <= self.cutoff
        return plans.where(keep), floors[keep]

    def raise_bound(self, bound: float) -> None:
        """A bound that our own arithmetic proves."""
        if bound > self.best * (1.0 + TRUST):
            raise SolverError(
                f"a bound of {bound!r} lies above a verified design at {self.best!r} "
                "(a fault of codesign: please report the instance)"
            )
        self.arithmetic = max(self.arithmetic, min(bound, self.best))
        self.bound = max(self.bound, self.arithmetic)

    def close(self, plans: Relation, floors: Floats, most: int) -> tuple[Relation, Floats]:
        """Solve the purchase of the most promising plans."""
        floors = floors.copy()
        for count, index in enumerate(np.argsort(floors, kind="stable")):
            if count >= most or floors[index] >= min(self.target, self.best):
                break
            if self.stop():
                raise Stopped
            floors[index] = self.close_one(plans, int(index), floors[index])
            self.tell("closing")
        return plans, floors

    def close_one(self, plans: Relation, index: int, floor: float) -> float:
        closed = self.subproblem.close(plans.where(np.array([index], dtype=np.intp)), self.best)
        self.offer(closed.best)
        return max(floor, closed.bound)

    def row_of(self, judged: Judged) -> Relation:
        """The tuple of plan and placement of a design."""
        design, space = judged.design, self.model.space
        values: dict[str, object] = {name: getattr(design.plan, name) for name in design.plan.__dataclass_fields__}
        values |= {f"{d}_layout": design.placement.layout(d) for d in ("tp", "cp", "pp", "dp")}
        values |= {
            "server": design.purchase.server,
            "servers": design.purchase.servers,
            "used": design.placement.ranks_in("domain"),
            "leaf_block": design.placement.ranks_in("leaf"),
        }
        return Relation("incumbent", {n: np.array([space[n].code(v)], dtype=np.intp) for n, v in values.items()})

    def codes_of(self, judged: Judged) -> dict[str, int]:
        """Codes of all decisions of a design."""
        purchase, space = judged.design.purchase, self.model.space
        _, network, storage = self.model.market.find(purchase)
        bought = {
            "network": (network.network, network.owned_servers),
            "storage": (storage.purchase, storage.owned),
            "checkpoint_interval": purchase.checkpoint_interval_s,
        }
        row = {name: int(column[0]) for name, column in self.row_of(judged).columns.items()}
        return row | {name: space[name].code(value) for name, value in bought.items()}

    def positions(self, plans: Relation, judged: Judged) -> npt.NDArray[np.intp]:
        """Where the tuple of a design stands among plans."""
        row = self.row_of(judged)
        same = np.ones(len(plans), dtype=bool)
        for name, column in row.columns.items():
            same &= plans.columns[name] == column[0]
        return np.flatnonzero(same)

    def take_cheaper_tie(self) -> None:
        """Among designs as good as the incumbent, the cheapest purchase with its plan and placement."""
        assert self.incumbent is not None
        row = self.row_of(self.incumbent)
        full, relaxed = self.subproblem.completions(row)
        equal = np.flatnonzero(relaxed <= self.best * (1.0 + self.limits.tie))
        if not len(equal):
            return
        capex = self.model.value(self.model.capex, full.columns)[equal]
        best = self.incumbent
        for index in equal[np.argsort(capex, kind="stable")][:32]:
            judged = self.subproblem.judge(full, int(index), float(relaxed[index]))
            fits = judged.evaluation.feasible and judged.value <= self.best * (1.0 + self.limits.tie)
            if fits and judged.evaluation.capex_usd < best.evaluation.capex_usd:
                self.incumbent = replace(judged)
                return
