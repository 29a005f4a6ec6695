"""Joint choices of plan and placement that can still beat a cutoff. Floor 5. In: a cost model. Out: relations.

Decisions are joined stage by stage: degrees and servers, schedule, recomputation and sharding, then the layout of each
dimension. After each stage the bound of every limit and of the objective over all that is still open excludes rows:
arithmetic on the model's own terms (`codesign.expr.bounds`), no solver. With a beam only the most promising rows go on:
a search for a first design. Without one nothing is lost: what remains holds every design that can beat the cutoff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.cost.space import PLAN_DECISIONS
from codesign.design import DIMENSIONS
from codesign.expr import Reducer, Relation, Space, evaluate, join, project
from codesign.expr.decision import flat_index
from codesign.expr.relation import semijoin
from codesign.solve.dominance import undominated_hardware, undominated_storage

Floats = npt.NDArray[np.float64]

CHUNK = 1 << 16
"""Rows that are extended at once, so that memory stays small whatever the size of the space."""

ALIKE = 2
"""Rows of one plan that a beam keeps: placements of it differ little."""

ROUNDING = 1e-12
"""Bounds within this relative distance over a limit are kept: sums of doubles are exact to this."""


class Stopped(Exception):
    """The time is over or the user cancelled."""


@dataclass
class Candidates:
    """Stages of one cost model.

    Attributes
    ----------
    hardware, storage : what is left of the market's relations under the limits on money and power.
    looked_at : rows bounded so far.
    """

    model: CostModel
    stop: Callable[[], bool] = lambda: False
    hardware: Relation = field(init=False)
    storage: Relation = field(init=False)
    looked_at: int = 0

    def __post_init__(self) -> None:
        space, design_space = self.model.space, self.model.design_space
        self._layouts = [self._layouts_of(d) for d in DIMENSIONS]
        self.storage = design_space.storage
        self.hardware = semijoin(design_space.hardware, self.storage, space)
        if len(self.storage) and len(self.hardware):
            # A server count with its network must leave money and power for some storage, and the other way round.
            for _ in range(2):
                self.hardware = self._affordable(self.hardware, [self.storage])
                self.storage = self._affordable(semijoin(self.storage, self.hardware, space), [self.hardware])
                self.hardware = semijoin(self.hardware, self.storage, space)
        self.hardware = undominated_hardware(self.model, self.hardware)
        self.storage = undominated_storage(self.model, self.storage)
        self._blocks = (
            project(self.hardware, space, ("server", "servers", "leaf_block")) if len(self.hardware) else self.hardware
        )
        self._reducers: dict[tuple[str, ...], Reducer] = {}

    def _layouts_of(self, dimension: str) -> Relation:
        space = self.model.space
        values = space[f"{dimension}_layout"].values
        degrees = [space[dimension].code(v.degree) for v in values]
        return Relation(
            f"{dimension} layouts",
            {
                dimension: np.asarray(degrees, dtype=np.intp),
                f"{dimension}_layout": np.arange(len(values), dtype=np.intp),
            },
        )

    def _affordable(self, relation: Relation, others: list[Relation]) -> Relation:
        keep = np.ones(len(relation), dtype=bool)
        reducer = Reducer(self.model.space, relation.scope, others)
        for limit in self.model.limits:
            if limit.unit in ("USD", "W") and len(relation):
                low = evaluate(limit.term, relation.columns, reducer)
                keep &= low <= limit.most * (1.0 + ROUNDING)
        return relation.where(keep)

    # -- bounds

    def reducer(self, scope: tuple[str, ...]) -> Reducer:
        """Least values over all that is not in `scope`, as far as relations allow it."""
        known = self._reducers.get(scope)
        if known is None:
            design_space = self.model.design_space
            relations = [*self._layouts, design_space.schedules, design_space.options, self.storage, self.hardware]
            known = self._reducers[scope] = Reducer(self.model.space, scope, relations)
        return known

    def bound(self, relation: Relation) -> Floats:
        """No design that extends a row has an objective below this; infinite if it can keep some limit no more."""
        if not len(relation):
            return np.zeros(0)
        self.looked_at += len(relation)
        reducer = self.reducer(relation.scope)
        objective = evaluate(self.model.objective, relation.columns, reducer)
        for limit in self.model.limits:
            over = evaluate(limit.term, relation.columns, reducer) > limit.most * (1.0 + ROUNDING)
            objective[over] = np.inf
        for stage in self.model.memory:
            objective[evaluate(stage, relation.columns, reducer) > 1.0 + ROUNDING] = np.inf
        return objective

    # -- stages

    def search(self, width: int) -> tuple[Relation, float]:
        """A beam of at most `width` rows a stage, most promising first; and a bound on all designs."""
        relation, bound = self._first()
        lowest = float(bound.min(initial=np.inf))
        relation, bound = _best(self.model.space, relation, bound, width)
        for extend in self._stages():
            parts = [extend(chunk) for chunk in _chunks(relation)]
            relation = _concatenate(parts)
            relation, bound = _best(self.model.space, relation, self.bound(relation), width)
        return relation, lowest

    def below(self, cutoff: float) -> tuple[Relation, Floats]:
        """Every plan and placement whose bound is at most `cutoff`, with bounds; nothing else is lost.

        Raises
        ------
        Stopped
            If the time ran out before all was looked at.
        """
        relation, bound = self._first()
        keep = bound <= cutoff
        found = list(self._descend(relation.where(keep), 0, cutoff))
        return _concatenate([one for one, _ in found]), np.concatenate([np.zeros(0), *(b for _, b in found)])

    def _first(self) -> tuple[Relation, Floats]:
        degrees = semijoin(self.model.design_space.degrees, self.hardware, self.model.space)
        return degrees, self.bound(degrees)

    def _descend(self, relation: Relation, stage: int, cutoff: float) -> Iterator[tuple[Relation, Floats]]:
        stages = self._stages()
        for chunk in _chunks(relation):
            if self.stop():
                raise Stopped
            extended = stages[stage](chunk)
            for part in _chunks(extended):
                bound = self.bound(part)
                keep = bound <= cutoff
                kept = part.where(keep)
                if stage + 1 == len(stages):
                    yield kept, bound[keep]
                elif len(kept):
                    yield from self._descend(kept, stage + 1, cutoff)

    def _stages(self) -> list[Callable[[Relation], Relation]]:
        space, design_space = self.model.space, self.model.design_space
        return [
            lambda relation: join(relation, design_space.schedules, space),
            lambda relation: join(relation, design_space.options, space),
            lambda relation: join(relation, self._blocks, space),
            *(lambda relation, i=i: self._placed(relation, i) for i in range(len(DIMENSIONS))),
        ]

    def _placed(self, relation: Relation, index: int) -> Relation:
        """Join the layouts of one dimension; keep what can still fill domains, leaf groups and pods exactly."""
        space = self.model.space
        joined = join(relation, self._layouts[index], space)
        used = joined.values(space, "used")
        leaf = joined.values(space, "leaf_block")
        pod = joined.values(space, "servers") / leaf
        rest = np.stack([used, leaf, pod], axis=1)
        for dimension in DIMENSIONS[: index + 1]:
            factors = np.asarray(space[f"{dimension}_layout"].values, dtype=np.float64)
            rest = rest / factors[joined.columns[f"{dimension}_layout"]]
        if index + 1 == len(DIMENSIONS):
            return joined.where(np.all(rest == 1.0, axis=1))
        # What the remaining dimensions must fill divides out whole and is no more than their degrees give.
        whole = np.all((rest >= 1.0) & (rest == np.round(rest)), axis=1)
        return joined.where(whole)


def _chunks(relation: Relation) -> Iterator[Relation]:
    for start in range(0, len(relation), CHUNK):
        yield relation.where(np.arange(start, min(start + CHUNK, len(relation)), dtype=np.intp))


def _best(space: Space, relation: Relation, bound: Floats, width: int) -> tuple[Relation, Floats]:
    """The rows of lowest bound, but of each plan on each number of servers only the first `ALIKE`: a varied beam."""
    order = np.argsort(bound, kind="stable")
    order = order[np.isfinite(bound[order])]
    names = [name for name in relation.scope if name in PLAN_DECISIONS or name in ("server", "servers", "used")]
    key = flat_index(names, space.sizes(names), relation.columns)[order]
    by_plan = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[by_plan], prepend=-1))
    place = np.arange(len(key)) - np.repeat(starts, np.diff(starts, append=len(key)))
    alike = np.empty(len(key), dtype=np.intp)
    alike[by_plan] = place
    order = order[alike < ALIKE][:width]
    return relation.where(order), bound[order]


def _concatenate(parts: list[Relation]) -> Relation:
    if not parts:
        return Relation("designs", {"server": np.zeros(0, dtype=np.intp)})
    names = parts[0].scope
    return Relation("designs", {name: np.concatenate([one.columns[name] for one in parts]) for name in names})
