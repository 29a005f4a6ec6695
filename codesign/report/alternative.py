"""Why not otherwise: the instance solved again with an override, beside the answer. Floor 6.

In: a solution and overrides. Out: an `Alternative`: a verdict that is proven or says that it is not, and all in which
the two designs differ. A solver is loaded when an alternative is solved, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codesign.design import DIMENSIONS, Design
from codesign.design.evaluation import Evaluation
from codesign.design.solution import Solution
from codesign.errors import Fault, SpecError
from codesign.exact.evaluate import Judge
from codesign.exact.verify import GREATER_IS_BETTER
from codesign.report.quantity import figure
from codesign.spec.instance import Instance

if TYPE_CHECKING:
    from codesign.solve.limits import Limits
    from codesign.solve.progress import Cancel, Listener

SAME = 1e-9
"""Relative distance within which two objectives are equal: that of a tie in a solve."""


@dataclass(frozen=True)
class Difference:
    """Something that is one thing here and another over there."""

    name: str
    here: Any
    there: Any


@dataclass(frozen=True)
class Alternative:
    """The answer with an override, beside the answer without.

    Attributes
    ----------
    verdict : "worse" (proven), "not better" (the best design found is worse; the gap leaves room for a better one),
        "same" (the same design), "equal" (another design, as good), "better", "another question" (workload or objective
        differ, so that the objectives do not compare), "possible" (the answer itself has no design), "illegal" (a rule
        excludes it), "infeasible", "unknown" (the limit came before a design).
    reasons : in words: the rule, the limits that exclude each other, or why it can be better.
    at_least_worse : every design with the override is worse by at least this share; None where that is not proven.
    found_worse : by which the best one found is worse; negative: better.
    solution : of the alternative; None if it is illegal.
    """

    overrides: tuple[str, ...]
    verdict: str
    reasons: tuple[str, ...] = ()
    at_least_worse: float | None = None
    found_worse: float | None = None
    solution: Solution | None = None
    choices: tuple[Difference, ...] = ()
    step_s: tuple[Difference, ...] = ()
    bill_usd: tuple[Difference, ...] = ()
    totals: tuple[Difference, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        whole = None if self.solution is None else self.solution.to_document()
        parts = ("choices", "step_s", "bill_usd", "totals")
        return {
            "overrides": list(self.overrides),
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "at_least_worse": self.at_least_worse,
            "found_worse": self.found_worse,
            "status": None if whole is None else whole["status"],
            "objective": None if whole is None else whole["objective"],
            "design": None if whole is None else whole["design"],
            "differences": {part: [dict(vars(one)) for one in getattr(self, part)] for part in parts},
        }


def compared(
    solution: Solution,
    overrides: Sequence[str],
    limits: Limits | None = None,
    progress: Listener | None = None,
    cancel: Cancel | None = None,
) -> Alternative:
    """Solve with overrides that hold together, and compare.

    Raises
    ------
    SpecError
        If they are no overrides of the instance. What only breaks a rule of the framework is a verdict.
    """
    asked = tuple(overrides)
    instance = Instance.from_document(solution.instance.to_document(), asked)
    from codesign.solve.solve import solve  # here, so that explaining without alternatives loads no solver

    try:
        other = solve(instance, limits, progress, cancel)
    except SpecError as problem:
        return Alternative(asked, "illegal", tuple(_rule(fault) for fault in problem.faults))
    if other.design is None or other.evaluation is None:
        return Alternative(asked, other.status, tuple(_why_nothing(other)), solution=other)
    if solution.design is None or solution.evaluation is None:
        return Alternative(asked, "possible", ("without it no design is known to compare with",), solution=other)
    verdict, reasons, at_least, found = _judged(solution, other)
    return Alternative(
        overrides=asked,
        verdict=verdict,
        reasons=reasons,
        at_least_worse=at_least,
        found_worse=found,
        solution=other,
        choices=tuple(choices(solution.design, other.design)),
        step_s=tuple(_parts(_step(solution.evaluation), _step(other.evaluation))),
        bill_usd=tuple(_parts(_bill(solution.evaluation), _bill(other.evaluation))),
        totals=tuple(_totals(solution.evaluation, other.evaluation)),
    )


def _rule(fault: Fault) -> str:
    return fault.hint or f"{fault.path}: found {fault.found}, expected {fault.expected}"


def _why_nothing(other: Solution) -> Iterator[str]:
    if other.conflict is None:
        yield "no verified design was found before the limit; that none exists is not proven"
        return
    names = other.conflict.limits
    yield (
        f"no design keeps {' and '.join(names)}{' together' if len(names) > 1 else ''}"
        if names
        else "no design can run"
    )
    for name, move in other.conflict.moves.items():
        yield f"{name}: {move}"


# --------------------------------------------------------------------------------------------------------- verdict


def _judged(here: Solution, there: Solution) -> tuple[str, tuple[str, ...], float | None, float | None]:
    """Verdict, reasons, by how much every design is worse, by how much the one found is."""
    if (here.instance.objective, _run(here.instance)) != (there.instance.objective, _run(there.instance)):
        return "another question", ("workload or objective differ, so that the two values do not compare",), None, None
    assert here.certificate is not None
    assert there.certificate is not None
    value, sign = here.certificate.value, (-1.0 if here.instance.objective in GREATER_IS_BETTER else 1.0)
    found = sign * (there.certificate.value - value) / abs(value)
    at_least = sign * (there.certificate.bound - value) / abs(value)
    if here.design == there.design and abs(found) <= SAME:
        return "same", (), None, found
    if at_least > SAME:
        return "worse", (), at_least, found
    if abs(found) <= SAME:
        return "equal", (), None, found
    if found > 0:
        return "not better", (), None, found
    return "better", tuple(_why_better(here, there)), None, found


def _run(instance: Instance) -> str:
    """The workload without what is stated of its plan."""
    return instance.workloads[0].model_dump_json(exclude={"plan"})


def _why_better(here: Solution, there: Solution) -> Iterator[str]:
    """What the instance as it stands has against the better design."""
    assert there.design is not None
    assert there.certificate is not None
    outside = list(_outside(here.instance, there.design))
    try:
        evaluation = Judge(here.instance).evaluate(there.design)
    except SpecError as problem:
        yield from (f"it needs {fault.found.removeprefix('a design with ')}" for fault in problem.faults)
        yield from outside
        return
    yield from outside
    limits = [one for one in evaluation.limits if not one.kept]
    for one in limits:
        taken, most = figure(one.value, one.unit), figure(one.most, one.unit)
        yield f"without the override it breaks {one.name}: {taken}, and the limit is {most}"
    if not limits:  # else these only say the same in other words
        said = tuple(f"plan.{name}:" for name in type(here.instance.workloads[0].plan).model_fields)
        rest = (fault for fault in evaluation.violations if not fault.startswith(said))
        yield from (f"without the override it breaks {fault}" for fault in rest)
    if outside or evaluation.violations:
        return
    if abs(evaluation.objective - there.certificate.value) > SAME * abs(there.certificate.value):
        yield "the override changes the figures themselves, not what may be chosen"
    else:
        yield "it was open to the first answer too, which stopped within its gap"


def _outside(instance: Instance, design: Design) -> Iterator[str]:
    """Values of the plan that the instance excludes."""
    stated = instance.workloads[0].plan
    for name in type(stated).model_fields:
        allowed, value = getattr(stated, name), getattr(design.plan, name)
        if allowed is not None and value not in allowed:
            yield f"plan.{name} is {value}, and the instance states {', '.join(str(one) for one in allowed)}"


# ----------------------------------------------------------------------------------------------------- differences


def choices(here: Design, there: Design) -> Iterator[Difference]:
    """Decisions in which two designs differ."""
    for part in ("plan", "purchase"):
        one, other = getattr(here, part), getattr(there, part)
        for name in vars(one):
            value, changed = getattr(one, name), getattr(other, name)
            if name in ("network", "storage"):
                for inner in vars(value):
                    if getattr(value, inner) != getattr(changed, inner):
                        yield Difference(f"{name}.{inner}", getattr(value, inner), getattr(changed, inner))
            elif value != changed:
                yield Difference(f"{part}.{name}", value, changed)
    for dimension in DIMENSIONS:
        layout, changed = here.placement.layout(dimension), there.placement.layout(dimension)
        if layout != changed:
            yield Difference(f"placement.{dimension}", list(layout), list(changed))


def _step(evaluation: Evaluation) -> dict[str, float]:
    (figures,) = evaluation.workloads.values()
    return dict(figures.breakdown_s)


def _bill(evaluation: Evaluation) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in evaluation.bill_of_materials:
        found[line.item] = found.get(line.item, 0.0) + line.total_usd
    return found


def _parts(here: dict[str, float], there: dict[str, float]) -> Iterator[Difference]:
    """Parts of a sum that differ, the largest difference first."""
    names = dict.fromkeys([*here, *there])
    rows = [Difference(name, here.get(name, 0.0), there.get(name, 0.0)) for name in names]
    yield from sorted((r for r in rows if r.here != r.there), key=lambda r: -abs(r.there - r.here))


def _totals(here: Evaluation, there: Evaluation) -> Iterator[Difference]:
    (one,), (other,) = here.workloads.values(), there.workloads.values()
    for name in ("step_time_s", "tokens_per_s", "mfu", "goodput", "time_to_train_s"):
        yield Difference(name, getattr(one, name), getattr(other, name))
    yield Difference("memory_bytes", one.memory.worst_rank_bytes, other.memory.worst_rank_bytes)
    for name in ("capex_usd", "power_w", "total_cost_usd"):
        yield Difference(name, getattr(here, name), getattr(there, name))
