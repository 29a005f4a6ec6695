"""The purchase for one plan and placement, solved exactly: the subproblem of the logic-based Benders decomposition.

Floor 5. In: one row of plan and placement. Out: the best design with it, and a bound on every design with it, both by
the exact model. All networks and storage that go with the row are listed; steps are played, most promising first, until
no purchase that is left can be better by its relaxed objective alone. (Hooker & Ottosson, "Logic-based Benders
decomposition", Mathematical Programming 96, 2003.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.design import Design
from codesign.design.evaluation import Evaluation
from codesign.errors import SolverError
from codesign.exact.evaluate import Judge
from codesign.expr import Decision, Relation, Space, evaluate, join
from codesign.solve.candidates import ROUNDING

Floats = npt.NDArray[np.float64]

AGREEMENT = 1e-9
"""Relative distance within which relaxed values may lie above exact ones: both are sums of doubles."""


@dataclass(frozen=True)
class Judged:
    """A design with its evaluation."""

    design: Design
    evaluation: Evaluation

    @property
    def value(self) -> float:
        """The minimised objective."""
        return self.evaluation.minimised


@dataclass(frozen=True)
class Closed:
    """Outcome for one plan and placement: the best design found with it, and a bound on all with it."""

    best: Judged | None
    bound: float


class Subproblem:
    """Solves purchases for rows of plan and placement."""

    def __init__(self, model: CostModel, judge: Judge, hardware: Relation, storage: Relation) -> None:
        self._model = model
        self._judge = judge
        self._hardware = hardware
        self._storage = storage

    def completions(self, rows: Relation, space: Space | None = None) -> tuple[Relation, Floats]:
        """All networks and storage for some rows that keep the relaxed limits, and their relaxed objectives."""
        model = self._model
        space = space or model.space
        full = join(join(rows, self._hardware, space), self._storage, space)
        if not len(full):
            return full, np.zeros(0)
        keep = np.ones(len(full), dtype=bool)
        for limit in model.limits:
            keep &= evaluate(limit.term, full.columns) <= limit.most * (1.0 + ROUNDING)
        full = full.where(keep)
        return full, evaluate(model.objective, full.columns) if len(full) else np.zeros(0)

    def floors(self, rows: Relation) -> Floats:
        """Least relaxed objective over all purchases, for each row; infinite where none keeps the limits."""
        space = self._model.space
        number = Decision("row", tuple(range(len(rows))))
        numbered = Relation(rows.name, {**rows.columns, "row": np.arange(len(rows), dtype=np.intp)})
        full, relaxed = self.completions(numbered, Space([*space.decisions, number]))
        least = np.full(len(rows), np.inf)
        np.minimum.at(least, full.columns["row"], relaxed)
        return least

    def close(self, row: Relation, better_than: float) -> Closed:
        """The best purchase for one row, by the exact model, unless none is below `better_than`.

        The exact step time depends on the purchase through the rates of the network only, and every objective is
        `fixed + slope x step` in it. So one step is played for each different set of rates, and all purchases with
        these rates follow.
        """
        full, relaxed = self.completions(row)
        if not len(full):
            return Closed(None, np.inf)
        exact = relaxed.copy()
        played = np.zeros(len(full), dtype=bool)
        groups = self._by_rates(full)
        while True:
            index = int(np.argmin(exact))
            if not exact[index] < better_than:
                return Closed(None, float(exact[index]))
            if not played[index]:
                members = groups == groups[index]
                exact[members] = self._with_step(full, relaxed, members, index)
                played |= members
                continue
            judged = self.judge(full, index, float(relaxed[index]))
            if judged.evaluation.feasible:
                if abs(judged.value - exact[index]) > AGREEMENT * judged.value:
                    raise SolverError(
                        f"a purchase was expected at {exact[index]!r} and is judged at {judged.value!r} "
                        "(a fault of codesign: please report the instance)"
                    )
                return Closed(judged, min(judged.value, float(exact[index])))
            exact[index] = np.inf

    def _by_rates(self, full: Relation) -> npt.NDArray[np.intp]:
        """Number of the group of equal rates that each row's network belongs to."""
        market, space = self._model.market, self._model.space
        known: dict[object, int] = {}
        networks = full.columns["network"]
        server = market.servers[int(full.columns["server"][0])]
        numbers = np.zeros(space.size("network"), dtype=np.intp)
        for code in np.unique(networks):
            rates = market.rates(server, market.networks[int(code)])
            numbers[code] = known.setdefault(rates, len(known))
        return numbers[networks]

    def _with_step(self, full: Relation, relaxed: Floats, members: npt.NDArray[np.bool_], index: int) -> Floats:
        """Exact objective of some rows that share a step; infinite where the exact step breaks the deadline."""
        model = self._model
        rows = {name: column[members] for name, column in full.columns.items()}
        step = evaluate(model.step, rows)
        exact_s = self._judge.step_time_s(model.decode(full.columns, index))
        reading = evaluate(model.reading, rows)
        stretched = np.maximum(exact_s, reading) / step
        if np.any(stretched < 1.0 - AGREEMENT):
            raise SolverError(
                f"the exact step of {exact_s!r} s lies below its relaxed value {float(step.max())!r} s; "
                "no bound can be trusted (a fault of codesign: please report the instance)"
            )
        fixed = evaluate(model.fixed_cost, rows)
        objective = fixed + (relaxed[members] - fixed) * np.maximum(stretched, 1.0)
        for limit in model.limits:
            if limit.unit == "s":
                late = evaluate(limit.term, rows) * stretched > limit.most * (1.0 + ROUNDING)
                objective[late] = np.inf
        return objective

    def judge(self, full: Relation, index: int, relaxed: float) -> Judged:
        """Judge one complete row.

        Raises
        ------
        SolverError
            If the exact model comes out below the relaxed one: a fault of ours that would make every bound worthless.
        """
        design = self._model.decode(full.columns, index)
        evaluation = self._judge.evaluate(design)
        if not evaluation.minimised >= relaxed * (1.0 - AGREEMENT):
            raise SolverError(
                f"the exact model judges a design at {evaluation.minimised!r}, below its relaxed value {relaxed!r}; "
                "no bound can be trusted (a fault of codesign: please report the instance)"
            )
        return Judged(design, evaluation)
