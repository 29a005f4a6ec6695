"""Why an answer is as it is: what binds, where time and money go, what each other choice would do. Floor 6.

In: a solution, and alternatives as `--set` writes them. Out: an `Explanation`, every figure of which was computed by
the exact model, or is a bound that a solve has proven. No solver is loaded unless an alternative is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codesign.cost import legality
from codesign.design import Design, Plan
from codesign.design.evaluation import Evaluation
from codesign.design.solution import SCHEMA, Solution, parse_document, read_text
from codesign.errors import SpecError, StaleSolutionError
from codesign.exact.evaluate import Judge
from codesign.exact.verify import GREATER_IS_BETTER, verify
from codesign.report.alternative import Alternative, compared
from codesign.spec.workload import RECOMPUTE

if TYPE_CHECKING:
    from codesign.solve.limits import Limits
    from codesign.solve.progress import Cancel, Listener

BINDS = 0.01
"""A limit binds when less than this share of it is left."""

CHOICES: Mapping[str, tuple[Any, ...]] = {"recompute": RECOMPUTE, "zero": (0, 1, 2, 3), **legality.TEXTS}
MOST_NEIGHBOURS = 24


@dataclass(frozen=True)
class Standing:
    """A limit, what the design takes of it, and whether that is (nearly) all: `slack` is the share that is left."""

    name: str
    value: float
    most: float
    unit: str
    slack: float
    binds: bool


@dataclass(frozen=True)
class Neighbour:
    """The design with one choice changed and all else kept, judged by the exact model.

    Attributes
    ----------
    change : the part of the design, with the value that it has and the one that it was given.
    worse : by how much the objective is worse, as a share; negative: better. None where the design cannot run.
    violations : what it breaks.
    """

    name: str
    here: Any
    there: Any
    worse: float | None
    violations: tuple[str, ...]


@dataclass(frozen=True)
class OneMore:
    """What one more server of the same type would take, on the same network and with the same storage."""

    capex_usd: float
    power_w: float


@dataclass(frozen=True)
class Explanation:
    """What can be said of a solution; see the module.

    Attributes
    ----------
    limits : the stated limits and the memory of the GPU.
    neighbours : other values of single choices.
    one_more_server : None where the network cannot join one more, or none can be had.
    alternatives : in the order asked for.
    """

    solution: Solution
    limits: tuple[Standing, ...]
    neighbours: tuple[Neighbour, ...]
    one_more_server: OneMore | None
    alternatives: tuple[Alternative, ...]

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        whole = self.solution.to_document()
        evaluation = whole["evaluation"]
        figures = None if evaluation is None else next(iter(evaluation["workloads"].values()))
        purchase = None if whole["design"] is None else whole["design"]["purchase"]
        return {
            "schema": SCHEMA,
            "codesign": whole["codesign"],
            "name": self.solution.instance.name,
            "status": whole["status"],
            "objective": whole["objective"],
            "conflict": whole["conflict"],
            "limits": [dict(vars(one)) for one in self.limits],
            "breakdown_s": None if figures is None else figures["breakdown_s"],
            "memory": None if figures is None else figures["memory"],
            "bill_of_materials": None if purchase is None else purchase["bill_of_materials"],
            "one_more_server": None if self.one_more_server is None else dict(vars(self.one_more_server)),
            "neighbours": [{**vars(one), "violations": list(one.violations)} for one in self.neighbours],
            "alternatives": [one.to_document() for one in self.alternatives],
        }


def explain(
    solution: Solution | Path | str,
    alternatives: Sequence[str | Sequence[str]] = (),
    limits: Limits | None = None,
    progress: Listener | None = None,
    cancel: Cancel | None = None,
) -> Explanation:
    """Explain a solution, and why it is not otherwise.

    Parameters
    ----------
    solution : a solution, a solution file, or the folder of `--out`.
    alternatives : each an override such as `plan.tp=16`, or several that hold together; each is solved anew.
    limits, progress, cancel : of these solves, as in `codesign.solve`.

    Raises
    ------
    StaleSolutionError
        If the file is no solution, or does not say what a fresh computation says.
    SpecError
        If an override is not one of this instance.
    """
    found = solution if isinstance(solution, Solution) else load(Path(solution))
    asked = [(one,) if isinstance(one, str) else tuple(one) for one in alternatives]
    answers = tuple(compared(found, overrides, limits, progress, cancel) for overrides in asked)
    if found.design is None or found.evaluation is None:
        return Explanation(found, (), (), None, answers)
    judge = Judge(found.instance)
    return Explanation(
        solution=found,
        limits=tuple(_standings(found.evaluation)),
        neighbours=tuple(_neighbours(judge, found.design, found.evaluation)),
        one_more_server=_one_more(judge, found.design, found.evaluation),
        alternatives=answers,
    )


def load(path: Path) -> Solution:
    """The solution in a file, computed again first: an altered figure must not be explained.

    Raises
    ------
    StaleSolutionError
        If the file is no solution, or does not say what a fresh computation says.
    """
    file, content = read_text(path)
    document = parse_document(content, str(file))
    checked = verify(document)
    if not checked.verified:
        many = len(checked.differences)
        raise StaleSolutionError(
            f"{file}: is not what a fresh computation gives ({many} difference{'s' * (many != 1)}, the first: "
            f"{checked.differences[0]}); see 'codesign verify'"
        )
    return Solution.from_document(document)


# ------------------------------------------------------------------------------------------------------ what binds


def _standings(evaluation: Evaluation) -> Iterator[Standing]:
    for check in evaluation.limits:
        yield Standing(check.name, check.value, check.most, check.unit, check.slack, check.slack < BINDS)
    for figures in evaluation.workloads.values():
        memory = figures.memory
        slack = 1.0 - memory.worst_rank_bytes / memory.capacity_bytes
        yield Standing("memory", memory.worst_rank_bytes, memory.capacity_bytes, "B", slack, slack < BINDS)


def _one_more(judge: Judge, design: Design, evaluation: Evaluation) -> OneMore | None:
    servers = design.purchase.servers + 1
    try:  # the network of the larger cluster: where the owned one is full, the same one bought
        option, network, _ = judge.market.find(replace(design.purchase, servers=servers))
    except SpecError:
        return None
    offered = any(server.name == option.server.name for server in judge.instance.offers.servers)
    if servers > option.owned and not offered:
        return None
    if not judge.market.counted(network, option.server, np.asarray([servers])).feasible[0]:
        return None
    larger = judge.evaluate(replace(design, purchase=replace(design.purchase, servers=servers)))
    return OneMore(larger.capex_usd - evaluation.capex_usd, larger.power_w - evaluation.power_w)


# ------------------------------------------------------------------------------------------------- single changes


def _neighbours(judge: Judge, design: Design, evaluation: Evaluation) -> Iterator[Neighbour]:
    for count, (name, here, there, changed) in enumerate(_changes(judge, design)):
        if count == MOST_NEIGHBOURS:
            return
        found = judge.evaluate(changed)
        if any(fault.startswith(("placement:", "network:")) for fault in found.violations):
            continue  # not the same placement any more: that is no single change
        yield Neighbour(name, here, there, worse_by(judge.instance.objective, evaluation, found), found.violations)


def worse_by(objective: str, here: Evaluation, there: Evaluation) -> float | None:
    """Share by which the objective is worse over there; negative if it is better, None if there is none."""
    if not (isfinite(there.objective) and here.objective):
        return None
    sign = -1.0 if objective in GREATER_IS_BETTER else 1.0
    return sign * (there.objective - here.objective) / abs(here.objective)


Change = tuple[str, Any, Any, Design]


def _changes(judge: Judge, design: Design) -> Iterator[Change]:
    """Single changes inside what the instance states."""
    stated, plan = judge.workload.plan, design.plan
    for name in ("recompute", "zero", "micro_batch", "virtual_stages", *legality.TEXTS):
        here, allowed = getattr(plan, name), getattr(stated, name)
        for there in _values(judge, plan, name):
            if there != here and (allowed is None or there in allowed):
                changed: dict[str, Any] = {name: there}
                yield f"plan.{name}", here, there, replace(design, plan=replace(plan, **changed))
    purchase = design.purchase
    for network in dict.fromkeys(option.network for option in judge.market.networks):
        differing = [n for n in vars(network) if getattr(network, n) != getattr(purchase.network, n)]
        if len(differing) == 1 and differing[0] != "tiers":
            (name,) = differing
            other = replace(design, purchase=replace(purchase, network=network))
            yield f"network.{name}", getattr(purchase.network, name), getattr(network, name), other
    units = sorted(
        o.purchase.units for o in judge.market.storages if o.purchase.product == purchase.storage.product and o.product
    )
    for there in _nearest(units, purchase.storage.units):
        other = replace(design, purchase=replace(purchase, storage=replace(purchase.storage, units=there)))
        yield "storage.units", purchase.storage.units, there, other


def _values(judge: Judge, plan: Plan, name: str) -> Sequence[Any]:
    """Other values of one decision, those that are legal beside the rest of the plan."""
    here = getattr(plan, name)
    candidates: Sequence[Any] = CHOICES.get(name, ())
    if name == "micro_batch":
        candidates = [b for b in (here // 2, here * 2) if b and b * plan.dp <= judge.workload.global_batch]
    elif name == "virtual_stages":
        candidates = range(1, judge.workload.model.layers // plan.pp + 1)
    legal = [value for value in candidates if _is_legal(judge, plan, name, value)]
    return _nearest(legal, here) if name == "virtual_stages" else legal


def _is_legal(judge: Judge, plan: Plan, name: str, value: Any) -> bool:
    return bool(legality.legal(judge.case, {**vars(plan), name: value}))


def _nearest(values: Sequence[int], here: int) -> list[int]:
    """The next lower and the next higher value."""
    below, above = [v for v in values if v < here], [v for v in values if v > here]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]
