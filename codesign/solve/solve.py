"""Instance -> Solution: the loop. Floor 5.

1. *Search*: a beam over the stages of decisions gives first designs, judged by the exact model: the incumbent.
2. *Exclude*: every plan and placement whose arithmetic bound lies above the incumbent is left out.
3. *Close*: for the most promising of the rest the purchase is solved exactly; each closing is a Benders cut (a floor).
4. *Master*: CP-SAT minimises the linearised cost over what is left; its choice is closed, tangents are laid where it
   stands, until the bound meets the incumbent within the asked gap.
5. *Proof*: HiGHS proves the bound again on the same rows. A bound above a verified design, or two solvers that
   disagree, is a fault and stops the run: the answer is never the better of two numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.design.certificate import Certificate, Proof
from codesign.design.solution import Solution
from codesign.errors import SolverError
from codesign.exact.evaluate import Judge
from codesign.expr import Relation
from codesign.expr.relation import semijoin
from codesign.relax.outcome import Outcome
from codesign.solve.candidates import Candidates, Stopped
from codesign.solve.conflict import Undecided, conflict
from codesign.solve.limits import Limits
from codesign.solve.master import Master
from codesign.solve.progress import Cancel, Listener, Progress
from codesign.solve.subproblem import Judged, Subproblem
from codesign.spec.instance import Instance

Floats = npt.NDArray[np.float64]

WIDTHS = (64, 512, 4096, 32768)
"""Beam widths of the search, tried in turn until a design is found."""
FIRST_JUDGED = 12
"""Designs of the beam that are judged by the exact model."""
CLOSED_A_ROUND = 256
"""Plans closed before the first master, most promising first; twice as many after each further one, since a master of
many close plans takes longer than closing them."""
POLISHED = 256
"""When no more than this many plans could still be better, they are all closed: the optimum, not only the gap."""
FEW_IN_MASTER, MOST_IN_MASTER = 1500, 20000
"""Tuples of plan and placement that a master takes, lowest floors first: the most if that many floors lie below the
asked bound, else the few. The others are bounded by their floors alone."""

ROWS_A_CHUNK = 2048
"""Plans whose purchases are listed at once."""

SUMMED = 1e-9
"""Relative distance by which one sum of doubles, added up in another order, may come out higher."""
ROUNDED = 2e-6
"""Relative distance below the incumbent that a solver's bound cannot get over: what the rounding of rows takes."""
TRUST = 1e-5
"""Relative distance by which a proven bound may exceed a verified design before it is a fault: the rounding of rows."""
AGREE = 1e-4
"""Relative distance within which two optimal bounds agree."""


def solve(
    instance: Instance,
    limits: Limits | None = None,
    progress: Listener | None = None,
    cancel: Cancel | None = None,
) -> Solution:
    """Solve an instance.

    Parameters
    ----------
    instance : from `codesign.read`.
    limits : time, gap, seed, threads, proof.
    progress : called with `Progress` events from the calling thread.
    cancel : set it from another thread to stop; the best verified design so far is returned.

    Returns
    -------
    Solution with status "optimal", "feasible" (a limit came first), "infeasible" (with the conflict) or "unknown".

    Raises
    ------
    SpecError
        If the instance has no legal plan, at the place of the pin that is at fault.
    SolverError
        If a certificate would rest on a contradiction: a fault of ours.
    """
    return _Run(instance, limits or Limits(), progress, cancel).solution()


class _Run:
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
        self.proven_by: tuple[str, ...] = ()
        self.first_s = float("inf")
        self.thorough = True
        self.iterations = self.cuts = self.in_master = 0
        self.proofs: list[Outcome] = []

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

    def solution(self) -> Solution:
        try:
            plans, floors = self.open_plans()
            if self.incumbent is None:
                return self.infeasible()
            self.certify(plans, floors)
        except Stopped:
            pass
        return self.finish()

    def feasible(self) -> bool:
        """Whether there is a design; raises `Stopped` if the time runs out before that is known."""
        self.open_plans(first_only=True)
        return self.incumbent is not None

    def open_plans(self, first_only: bool = False) -> tuple[Relation, Floats]:
        """Plans that could still be better than the incumbent; no incumbent after this: no design at all."""
        self.tell("searching")
        if not (len(self.candidates.hardware) and len(self.candidates.storage)):
            return self.candidates.hardware, np.zeros(0)
        self.search()
        if first_only and self.incumbent is not None:
            return self.candidates.hardware, np.zeros(0)
        plans, floors = self.exclude()
        plans, floors = self.close(plans, floors, CLOSED_A_ROUND)
        if self.incumbent is None:
            plans, floors = self.close(plans, floors, len(plans))
        return plans, floors

    def search(self) -> None:
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
            floors[index] = self._close_one(plans, int(index), floors[index])
            self.tell("closing")
        return plans, floors

    def _close_one(self, plans: Relation, index: int, floor: float) -> float:
        closed = self.subproblem.close(plans.where(np.array([index], dtype=np.intp)), self.best)
        self.offer(closed.best)
        return max(floor, closed.bound)

    def certify(self, plans: Relation, floors: Floats) -> None:
        """The loop of master and closings, then the second proof."""
        while True:
            master, kept, kept_floors, rest = self._master(plans, floors)
            outcome = self._run_master(master, kept, kept_floors, rest)
            if outcome is None:
                # The incumbent got so much better that the rows are laid anew.
                plans, floors = self._merge(kept, master.floors, plans, floors)
                continue
            break
        if self.limits.proof == "double" and not self.stop():
            self.tell("proof")
            second = master.solve(
                "highs", time_s=self.left_s(), gap=1e-6, seed=self.limits.seed, threads=1, stop=self.stop
            )
            self.proofs.append(second)
        self._settle(rest)

    @property
    def asked_proofs(self) -> int:
        """Solvers that must each have proven a bound before it is reported."""
        return 2 if self.limits.proof == "double" else 1

    def _master(self, plans: Relation, floors: Floats) -> tuple[Master, Relation, Floats, float]:
        """Rows over the plans that are left, and a bound on those that were too many to take."""
        assert self.incumbent is not None
        order = np.argsort(floors, kind="stable")
        needed = int(np.sum(floors < self.best * (1.0 - self.limits.gap / 10.0)))
        taken = min(max(needed, FEW_IN_MASTER), MOST_IN_MASTER)
        kept = order[:taken]
        rest = float(floors[order[taken]]) if len(order) > taken else np.inf
        home = int(self._positions(plans, self.incumbent)[0])
        if home not in kept:
            kept = np.append(kept, home)
        relation, kept_floors = plans.where(kept), np.minimum(floors[kept], self.best)
        self.in_master = len(relation)
        space = self.model.space
        hardware = semijoin(self.candidates.hardware, relation, space)
        storage = semijoin(self.candidates.storage, hardware, space)
        return Master(self.model, relation, hardware, storage, kept_floors, self.best), relation, kept_floors, rest

    def _run_master(self, master: Master, plans: Relation, floors: Floats, rest: float) -> Outcome | None:
        hint: Floats | None = None
        laid_for = self.best
        while True:
            self.tell("master")
            outcome = master.solve(
                "cp-sat",
                time_s=self.left_s(),
                gap=min(1e-5, self.limits.gap / 10.0),
                seed=self.limits.seed,
                threads=self.limits.threads,
                hint=hint,
                stop=self.stop,
            )
            self.iterations += 1
            self.cuts += master.cuts
            master.cuts = 0
            self.proofs = [outcome]
            if outcome.status == "infeasible" or outcome.bound > self.best * (1.0 + TRUST):
                raise SolverError(
                    f"CP-SAT's bound {outcome.bound!r} lies above a verified design at {self.best!r} "
                    "(a fault of codesign or of the solver: please report the instance)"
                )
            enough = min(self.target, self.best * (1.0 - ROUNDED))
            if min(outcome.bound, rest) >= enough or self.stop() or outcome.chosen is None:
                if outcome.status == "optimal" and not self.stop():
                    self._polish(master, plans)
                return outcome
            self.bound = max(self.bound, min(outcome.bound, rest, self.best))
            hint = outcome.chosen
            before = self.best
            tuples = self._worth_closing(master, outcome.chosen, outcome.solutions)
            bounds = np.array([self._close_one(plans, index, float(master.floors[index])) for index in tuples])
            raised = master.raise_floors(np.array(tuples, dtype=np.intp), bounds)
            laid = master.refine(outcome.chosen)
            if self.best < laid_for * (1.0 - 1e-3):
                return None
            if not (laid or raised or self.best < before):
                return outcome

    def _worth_closing(self, master: Master, chosen: Floats, solutions: Iterable[Floats]) -> list[int]:
        found = {master.chosen_plan(chosen): None}
        for one in list(solutions)[-8:]:
            found[master.chosen_plan(one)] = None
        most = CLOSED_A_ROUND * 2 ** min(self.iterations, 10)
        for index in np.argsort(master.floors, kind="stable")[:most]:
            if master.floors[index] < self.target:
                found[int(index)] = None
        return list(found)

    def _polish(self, master: Master, plans: Relation) -> None:
        """Close what little is left below the incumbent, so that the optimum itself is returned."""
        open_ = np.flatnonzero(master.floors < self.best * (1.0 - 1e-12))
        if not 0 < len(open_) <= POLISHED:
            return
        for index in open_[np.argsort(master.floors[open_], kind="stable")]:
            if self.stop():
                return
            if master.floors[index] < self.best:
                bound = self._close_one(plans, int(index), float(master.floors[index]))
                master.raise_floors(np.array([index], dtype=np.intp), np.array([bound]))
        outcome = master.solve(
            "cp-sat",
            time_s=self.left_s(),
            gap=1e-6,
            seed=self.limits.seed,
            threads=self.limits.threads,
            stop=self.stop,
        )
        self.iterations += 1
        self.cuts += master.cuts
        master.cuts = 0
        if outcome.bound >= self.proofs[0].bound:
            self.proofs = [outcome]

    def _merge(self, kept: Relation, kept_floors: Floats, plans: Relation, floors: Floats) -> tuple[Relation, Floats]:
        """Plans still open after a better incumbent, with the floors that the master has learnt."""
        order = np.argsort(floors, kind="stable")
        learnt = floors[order].copy()
        taken = min(len(kept_floors), len(learnt))
        learnt[:taken] = np.maximum(learnt[:taken], kept_floors[:taken])
        keep = learnt <= self.cutoff
        return plans.where(order).where(keep), learnt[keep]

    def _settle(self, rest: float) -> None:
        """The bound that every proof supports."""
        bounds = [min(outcome.bound, rest, self.best) for outcome in self.proofs]
        for outcome in self.proofs:
            if outcome.status == "infeasible" or outcome.bound > self.best * (1.0 + TRUST):
                raise SolverError(
                    f"{outcome.solver} puts the bound at {outcome.bound!r}, above a verified design at {self.best!r} "
                    "(a fault of codesign or of the solver: please report the instance)"
                )
        optimal = [b for b, outcome in zip(bounds, self.proofs, strict=True) if outcome.status == "optimal"]
        if len(optimal) > 1 and max(optimal) - min(optimal) > AGREE * self.best:
            raise SolverError(
                "the two solvers disagree on the bound: "
                + ", ".join(f"{o.solver} {o.bound!r}" for o in self.proofs)
                + " (a fault of codesign or of a solver: please report the instance)"
            )
        supported = min(bounds) if len(bounds) == self.asked_proofs else 0.0
        # Rounding may leave the solvers a little below what arithmetic has; their confirmation is worth more than that.
        if supported >= self.arithmetic * (1.0 - TRUST):
            self.bound = supported
            self.proven_by = tuple(outcome.solver for outcome in self.proofs)

    # -- answers

    def finish(self) -> Solution:
        if self.incumbent is None:
            return Solution("unknown", self.instance, self.model.unit, notes=("the limit came before any design",))
        self._cheaper_tie()
        if not self.proven_by:
            self.bound = self.arithmetic  # what solvers said on the way was not confirmed
        value, bound = self.model.to_user(self.best), self.model.to_user(self.bound)
        gap = abs(value - bound) / abs(value)
        timed_out = self.stop()
        self.tell("done")
        certificate = Certificate(
            value=value,
            bound=bound,
            gap=gap,
            proven_by=self.proven_by,
            proofs=tuple(
                Proof(o.solver, o.status, self.model.to_user(max(o.bound, 1e-300)), o.wall_s) for o in self.proofs
            ),
            iterations=self.iterations,
            cuts=self.cuts,
            designs_evaluated=self.judge.evaluated,
            space_designs=self.in_master,
            excluded=self.candidates.looked_at,
            wall_s=self.elapsed(),
            first_design_s=self.first_s,
            seed=self.limits.seed,
            threads=self.limits.threads,
            deterministic=self.limits.threads == 1 and not timed_out,
        )
        assert self.incumbent is not None
        return Solution(
            status="optimal" if self.proven_by and gap <= max(self.limits.gap, TRUST) else "feasible",
            instance=self.instance,
            objective_unit=self.model.unit,
            design=self.incumbent.design,
            evaluation=self.incumbent.evaluation,
            certificate=certificate,
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """What the reader should know about the space and the figures."""
        found = []
        if self.candidates.model.market.storages[0].product is None:
            found.append("the instance states no storage: checkpoints, failures and goodput are left out")
        return tuple(found)

    def _cheaper_tie(self) -> None:
        """Among designs as good as the incumbent, the cheapest purchase with its plan and placement."""
        assert self.incumbent is not None
        row = self._row_of(self.incumbent)
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

    def _row_of(self, judged: Judged) -> Relation:
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

    def _positions(self, plans: Relation, judged: Judged) -> npt.NDArray[np.intp]:
        """Where the tuple of a design stands among plans."""
        row = self._row_of(judged)
        same = np.ones(len(plans), dtype=bool)
        for name, column in row.columns.items():
            same &= plans.columns[name] == column[0]
        return np.flatnonzero(same)

    def infeasible(self) -> Solution:
        """No design keeps all limits: say which limits exclude each other."""
        self.tell("conflict")

        def feasible(instance: Instance) -> bool:
            try:
                return _Run(instance, self.remaining(), None, self._cancel).feasible()
            except Stopped:
                raise Undecided from None

        def best(instance: Instance) -> Solution:
            return _Run(instance, self.remaining(), None, self._cancel).answered()

        found, smallest = conflict(self.instance, feasible, best)
        notes = () if smallest else ("the time ran out: the conflict is one, but may not be a smallest one",)
        return Solution("infeasible", self.instance, self.model.unit, conflict=found, notes=notes)

    def answered(self) -> Solution:
        """A design within the asked gap by arithmetic and purchases alone: no master, no reason why nothing fits."""
        self.thorough = False
        try:
            plans, floors = self.open_plans()
            self.close(plans, floors, len(plans))
        except Stopped:
            pass
        return self.finish()

    def remaining(self) -> Limits:
        """The limits of this solve with the time that is left of it."""
        return replace(self.limits, time_s=self.left_s())
