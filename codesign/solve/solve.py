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

from dataclasses import replace

from codesign.design.certificate import Certificate, Proof
from codesign.design.solution import Solution
from codesign.relax.outcome import Outcome
from codesign.solve.candidates import Stopped
from codesign.solve.certify import Certification
from codesign.solve.conflict import Undecided, conflict
from codesign.solve.limits import Limits
from codesign.solve.progress import Cancel, Listener
from codesign.solve.search import TRUST, Search
from codesign.spec.instance import Instance


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
    search = Search(instance, limits or Limits(), progress, cancel)
    certification = Certification(search)
    try:
        plans, floors = search.open_plans()
        if search.incumbent is None:
            return _infeasible(search, cancel)
        certification.run(plans, floors)
    except Stopped:
        pass
    return _answer(search, certification)


def _answer(search: Search, certification: Certification) -> Solution:
    if search.incumbent is None:
        return Solution("unknown", search.instance, search.model.unit, notes=("the limit came before any design",))
    search.take_cheaper_tie()
    if not certification.proven_by:
        search.bound = search.arithmetic  # what solvers said on the way was not confirmed
    value, bound = search.model.to_user(search.best), search.model.to_user(search.bound)
    gap = abs(value - bound) / abs(value)
    timed_out = search.stop()
    search.tell("done")
    certificate = Certificate(
        value=value,
        bound=bound,
        gap=gap,
        proven_by=certification.proven_by,
        proofs=tuple(
            Proof(o.solver, o.status, search.model.to_user(max(o.bound, 1e-300)), o.wall_s)
            for o in certification.proofs
        ),
        iterations=certification.iterations,
        cuts=search.cuts,
        designs_evaluated=search.judge.evaluated,
        space_designs=certification.in_master,
        excluded=search.candidates.looked_at,
        wall_s=search.elapsed(),
        first_design_s=search.first_s,
        seed=search.limits.seed,
        threads=search.limits.threads,
        deterministic=search.limits.threads == 1 and not timed_out,
    )
    assert search.incumbent is not None
    return Solution(
        status="optimal" if certification.proven_by and gap <= max(search.limits.gap, TRUST) else "feasible",
        instance=search.instance,
        objective_unit=search.model.unit,
        design=search.incumbent.design,
        evaluation=search.incumbent.evaluation,
        certificate=certificate,
        notes=_notes(search),
    )


def _bound(search: Search, outcome: Outcome) -> float | None:
    return search.model.to_user(outcome.bound) if outcome.bound > 0 else None


def _notes(search: Search) -> tuple[str, ...]:
    """What the reader should know about the space and the figures."""
    found = []
    if search.model.market.storages[0].product is None:
        found.append("the instance states no storage: checkpoints, failures and goodput are left out")
    return tuple(found)


def _infeasible(search: Search, cancel: Cancel | None) -> Solution:
    """No design keeps all limits: say which limits exclude each other."""
    search.tell("conflict")

    def remaining() -> Limits:
        return replace(search.limits, time_s=search.left_s())

    def feasible(instance: Instance) -> bool:
        try:
            return Search(instance, remaining(), None, cancel).feasible()
        except Stopped:
            raise Undecided from None

    def best(instance: Instance) -> Solution:
        return _within_gap(Search(instance, remaining(), None, cancel))

    found, smallest = conflict(search.instance, feasible, best)
    notes = () if smallest else ("the time ran out: the conflict is one, but may not be a smallest one",)
    return Solution("infeasible", search.instance, search.model.unit, conflict=found, notes=notes)


def _within_gap(search: Search) -> Solution:
    """A design within the asked gap by arithmetic and purchases alone: no master, no reason why nothing fits."""
    search.thorough = False
    try:
        plans, floors = search.open_plans()
        search.close(plans, floors, len(plans))
    except Stopped:
        pass
    return _answer(search, Certification(search))
