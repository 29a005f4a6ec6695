"""The loop of master and closings, and the second proof. Floor 5. In: open plans. Out: a bound, and who proved it.

CP-SAT minimises the linearised cost over what is left; its choice is closed and tangents are laid where it stands,
until the bound meets the incumbent within the asked gap. Then HiGHS proves the bound again on the same rows. A bound
above a verified design, or two solvers that disagree, is a fault that stops the run: never the better of two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from codesign.errors import SolverError
from codesign.expr import Relation
from codesign.expr.relation import semijoin
from codesign.relax.outcome import Outcome
from codesign.solve.master import Master
from codesign.solve.search import CLOSED_AT_FIRST, TRUST, Search

Floats = npt.NDArray[np.float64]

POLISHED = 256
"""When no more than this many plans could still be better, they are all closed: the optimum, not only the gap."""
LEAST_IN_MASTER, FEW_IN_MASTER, MOST_IN_MASTER = 64, 1500, 20000
"""Tuples of plan and placement that a master takes, lowest floors first: all that could still be better, if these are
few; else those that are needed for the asked gap. The others are bounded by their floors alone."""
ROUNDED = 2e-6
"""Relative distance below the incumbent that a solver's bound cannot get over: what the rounding of rows takes."""
AGREE = 1e-4
"""Relative distance within which two optimal bounds agree."""


class Certification:
    """Proofs of one solve.

    Attributes
    ----------
    proofs : what each solver said last.
    proven_by : solvers that have each proven the bound of the search; none until all that were asked have.
    iterations, in_master : masters solved, and tuples of plan and placement in the last one.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.limits = search, search.limits
        self.proofs: list[Outcome] = []
        self.proven_by: tuple[str, ...] = ()
        self.iterations = self.in_master = 0

    def run(self, plans: Relation, floors: Floats) -> None:
        """The loop of master and closings, then the second proof."""
        while True:
            master, kept, kept_floors, rest = self._master(plans, floors)
            outcome = self._run_master(master, kept, kept_floors, rest)
            if outcome is None:
                # The incumbent got so much better that the rows are laid anew.
                plans, floors = self._merge(kept, master.floors, plans, floors)
                continue
            break
        if self.limits.proof == "double" and not self.search.stop():
            self.search.tell("proof")
            second = master.solve(
                "highs", time_s=self.search.left_s(), gap=1e-6, seed=self.limits.seed, threads=1, stop=self.search.stop
            )
            self.proofs.append(second)
        self._settle(rest)

    @property
    def asked_proofs(self) -> int:
        """Solvers that must each have proven a bound before it is reported."""
        return 2 if self.limits.proof == "double" else 1

    def _master(self, plans: Relation, floors: Floats) -> tuple[Master, Relation, Floats, float]:
        """Rows over the plans that are left, and a bound on those that were too many to take."""
        assert self.search.incumbent is not None
        order = np.argsort(floors, kind="stable")
        better = int(np.sum(floors < self.search.best * (1.0 - ROUNDED)))
        asked = int(np.sum(floors < self.search.best * (1.0 - self.limits.gap / 10.0)))
        taken = max(better, LEAST_IN_MASTER) if better <= FEW_IN_MASTER else max(asked, FEW_IN_MASTER)
        taken = min(taken, MOST_IN_MASTER)
        kept = order[:taken]
        rest = float(floors[order[taken]]) if len(order) > taken else np.inf
        home = int(self.search.positions(plans, self.search.incumbent)[0])
        if home not in kept:
            kept = np.append(kept, home)
        relation, kept_floors = plans.where(kept), np.minimum(floors[kept], self.search.best)
        self.in_master = len(relation)
        space = self.search.model.space
        hardware = semijoin(self.search.candidates.hardware, relation, space)
        storage = semijoin(self.search.candidates.storage, hardware, space)
        master = Master(self.search.model, relation, hardware, storage, kept_floors, self.search.best)
        return master, relation, kept_floors, rest

    def _run_master(self, master: Master, plans: Relation, floors: Floats, rest: float) -> Outcome | None:
        assert self.search.incumbent is not None
        hint = master.standing_at(self.search.codes_of(self.search.incumbent))
        laid_for = self.search.best
        while True:
            self.search.tell("master")
            outcome = master.solve(
                "cp-sat",
                time_s=self.search.left_s(),
                gap=min(1e-5, self.limits.gap / 10.0),
                seed=self.limits.seed,
                threads=self.limits.threads,
                hint=hint,
                stop=self.search.stop,
            )
            self.iterations += 1
            self.search.cuts += master.cuts
            master.cuts = 0
            self.proofs = [outcome]
            if outcome.status == "infeasible" or outcome.bound > self.search.best * (1.0 + TRUST):
                raise SolverError(
                    f"CP-SAT's bound {outcome.bound!r} lies above a verified design at {self.search.best!r} "
                    "(a fault of codesign or of the solver: please report the instance)"
                )
            enough = min(self.search.target, self.search.best * (1.0 - ROUNDED))
            if min(outcome.bound, rest) >= enough or self.search.stop() or outcome.chosen is None:
                if outcome.status == "optimal" and not self.search.stop():
                    self._polish(master, plans)
                return outcome
            self.search.bound = max(self.search.bound, min(outcome.bound, rest, self.search.best))
            hint = outcome.chosen
            before = self.search.best
            tuples = self._worth_closing(master, outcome.chosen, outcome.solutions)
            bounds = np.array([self.search.close_one(plans, index, float(master.floors[index])) for index in tuples])
            raised = master.raise_floors(np.array(tuples, dtype=np.intp), bounds)
            laid = master.refine(outcome.chosen)
            if self.search.best < laid_for * (1.0 - 1e-3):
                return None
            if not (laid or raised or self.search.best < before):
                return outcome

    def _worth_closing(self, master: Master, chosen: Floats, solutions: Iterable[Floats]) -> list[int]:
        found = {master.chosen_plan(chosen): None}
        for one in list(solutions)[-8:]:
            found[master.chosen_plan(one)] = None
        most = CLOSED_AT_FIRST * 2 ** min(self.iterations, 10)
        for index in np.argsort(master.floors, kind="stable")[:most]:
            if master.floors[index] < self.search.target:
                found[int(index)] = None
        return list(found)

    def _polish(self, master: Master, plans: Relation) -> None:
        """Close what little is left below the incumbent, so that the optimum itself is returned."""
        open_ = np.flatnonzero(master.floors < self.search.best * (1.0 - 1e-12))
        if not 0 < len(open_) <= POLISHED:
            return
        for index in open_[np.argsort(master.floors[open_], kind="stable")]:
            if self.search.stop():
                return
            if master.floors[index] < self.search.best:
                bound = self.search.close_one(plans, int(index), float(master.floors[index]))
                master.raise_floors(np.array([index], dtype=np.intp), np.array([bound]))
        outcome = master.solve(
            "cp-sat",
            time_s=self.search.left_s(),
            gap=1e-6,
            seed=self.limits.seed,
            threads=self.limits.threads,
            stop=self.search.stop,
        )
        self.iterations += 1
        self.search.cuts += master.cuts
        master.cuts = 0
        if outcome.bound >= self.proofs[0].bound:
            self.proofs = [outcome]

    def _merge(self, kept: Relation, kept_floors: Floats, plans: Relation, floors: Floats) -> tuple[Relation, Floats]:
        """Plans still open after a better incumbent, with the floors that the master has learnt."""
        order = np.argsort(floors, kind="stable")
        learnt = floors[order].copy()
        taken = min(len(kept_floors), len(learnt))
        learnt[:taken] = np.maximum(learnt[:taken], kept_floors[:taken])
        keep = learnt <= self.search.cutoff
        return plans.where(order).where(keep), learnt[keep]

    def _settle(self, rest: float) -> None:
        """The bound that every proof supports."""
        bounds = [min(outcome.bound, rest, self.search.best) for outcome in self.proofs]
        for outcome in self.proofs:
            if outcome.status == "infeasible" or outcome.bound > self.search.best * (1.0 + TRUST):
                raise SolverError(
                    f"{outcome.solver} puts the bound at {outcome.bound!r}, above a verified design at "
                    f"{self.search.best!r} (a fault of codesign or of the solver: please report the instance)"
                )
        optimal = [b for b, outcome in zip(bounds, self.proofs, strict=True) if outcome.status == "optimal"]
        if len(optimal) > 1 and max(optimal) - min(optimal) > AGREE * self.search.best:
            raise SolverError(
                "the two solvers disagree on the bound: "
                + ", ".join(f"{o.solver} {o.bound!r}" for o in self.proofs)
                + " (a fault of codesign or of a solver: please report the instance)"
            )
        supported = min(bounds) if len(bounds) == self.asked_proofs else 0.0
        # Rounding may leave the solvers a little below what arithmetic has; their confirmation is worth more than that.
        if supported >= self.search.arithmetic * (1.0 - TRUST):
            self.search.bound = supported
            self.proven_by = tuple(outcome.solver for outcome in self.proofs)
