"""Why nothing fits: a smallest set of stated limits that exclude each other, and how far each must move. Floor 5.

A deletion filter (Chinneck, "Feasibility and Infeasibility in Optimization", 2008, section 6.2): members are dropped in
turn, and stay dropped while there is still no design. What is left conflicts, and without any one of it there is a
design. Then each member is dropped alone and its own quantity minimised: that is how far it must move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from codesign.cost.market import CEILING_GPUS
from codesign.design import Design
from codesign.design.solution import NOT_ENOUGH, Conflict, Solution
from codesign.spec.instance import Instance
from codesign.spec.offers import Owned, all_switches

Feasible = Callable[[Instance], bool]
Best = Callable[[Instance], Solution]


@dataclass(frozen=True)
class Member:
    """Something that the user states and that can exclude designs.

    Attributes
    ----------
    name : as the user writes it, such as `limits.capex` or `plan.tp`.
    dropped : the instance without it.
    quantity : internal objective whose least value says how far it must move; empty where there is none.
    """

    name: str
    dropped: Callable[[Instance], Instance]
    quantity: str = ""


class Undecided(Exception):
    """The time ran out before it was known whether a design exists."""


LIMITS = {
    "capex_usd": ("capex", "USD"),
    "power_w": ("power", "W"),
    "deadline_s": ("time_to_train", "s"),
    "gpus": ("gpus", "GPUs"),
}
"""Field of the limits -> the objective that takes least of it, and its unit."""


def members(instance: Instance) -> Iterator[Member]:
    """Everything stated that can be in a conflict, in the order in which it is tried to be dropped: pins first."""
    for field in type(instance.workloads[0].plan).model_fields:
        if getattr(instance.workloads[0].plan, field) is not None:
            yield Member(f"plan.{field}", lambda one, field=field: _without_pin(one, field))  # type: ignore[misc]
    if instance.offers.storage or any(item.storage is not None for item in instance.inventory):
        yield Member("storage", _without_storage)
    for field, (quantity, _) in LIMITS.items():
        if getattr(instance.limits, field) is not None:
            name = f"limits.{type(instance.limits).model_fields[field].alias or field}"
            yield Member(name, lambda one, field=field: _without_limit(one, field), quantity)  # type: ignore[misc]
    if instance.inventory and not instance.offers.servers:
        yield Member("inventory", _with_many, "gpus")


def conflict(instance: Instance, feasible: Feasible, best: Best) -> tuple[Conflict, bool]:
    """A smallest conflict of an instance that has no design.

    Parameters
    ----------
    feasible : whether an instance has a design; raises `Undecided` if the time runs out.
    best : solves an instance.

    Returns
    -------
    The conflict, and whether it is proven to be smallest (the time may run out before).
    """
    kept = list(members(instance))
    smallest = True
    try:
        for member in tuple(kept):
            rest = [one for one in kept if one is not member]
            if not feasible(_without(instance, [one for one in members(instance) if one.name not in _names(rest)])):
                kept = rest
    except Undecided:
        smallest = False
    moves: dict[str, str] = {}
    if smallest:
        others = [one for one in members(instance) if one.name not in _names(kept)]
        base = _without(instance, others)
        for member in kept:
            moves[member.name] = _move(instance, base, member, best)
    return Conflict(_names(kept), moves), smallest


def _names(chosen: list[Member]) -> tuple[str, ...]:
    return tuple(one.name for one in chosen)


def _without(instance: Instance, dropped: list[Member]) -> Instance:
    for member in dropped:
        instance = member.dropped(instance)
    return instance


def _move(instance: Instance, base: Instance, member: Member, best: Best) -> str:
    """How far a member must move while all else stays as stated, in words; failing that, while the conflict does."""
    answer, aside = _least(instance, member, best), ""
    if answer.design is None:
        answer, aside = _least(base, member, best), NOT_ENOUGH
    if answer.design is None or answer.certificate is None:
        return "further than could be found out in the time"
    return _towards(instance, member, answer.design, answer.certificate.value) + aside


def _least(instance: Instance, member: Member, best: Best) -> Solution:
    """The design that takes least of a member's quantity, or the best without it if it has none."""
    freed = member.dropped(instance)
    return best(freed.model_copy(update={"objective": member.quantity}) if member.quantity else freed)


def _towards(instance: Instance, member: Member, design: Design, value: float) -> str:
    if member.name.startswith("plan."):
        field = member.name.removeprefix("plan.")
        stated = ", ".join(str(value) for value in getattr(instance.workloads[0].plan, field))
        return f"{getattr(design.plan, field)} instead of {stated}, for example"
    if member.name == "storage":
        return "a product or a number of units that holds the checkpoints and keeps the run going, or none"
    if member.name == "inventory":
        joined = "" if all(item.fabric for item in instance.inventory) else ", with a network between them"
        return f"{design.purchase.servers} x {design.purchase.server}{joined}, instead of {_owned(instance)}"
    field, unit = next((f, u) for f, (quantity, u) in LIMITS.items() if quantity == member.quantity)
    return f"from {_said(getattr(instance.limits, field), unit)} to {_said(value, unit)}"


def _owned(instance: Instance) -> str:
    return " and ".join(f"{item.count} x {item.server.name}" for item in instance.inventory)


def _said(value: float, unit: str) -> str:
    """A figure with enough digits to be put back into an instance; rounded up, so that it is enough."""
    scales: Mapping[str, tuple[float, str, str]] = {
        "USD": (1e6, "$", "M"),
        "W": (1e6, "", "MW"),
        "s": (86400.0, "", " days"),
        "GPUs": (1.0, "", " GPUs"),
    }
    scale, before, after = scales[unit]
    if unit == "GPUs":
        return f"{before}{value:.0f}{after}"
    shown = value / scale
    digits = 4 if shown < 1 else 3
    raised = ceil(shown * 10**digits - 1e-6) / 10**digits
    return f"{before}{raised:.{digits}f}".rstrip("0").rstrip(".") + after


# ------------------------------------------------------------------------------------------- instances without


def _without_pin(instance: Instance, field: str) -> Instance:
    workload = instance.workloads[0]
    plan = workload.plan.model_copy(update={field: None})
    return instance.model_copy(update={"workloads": (workload.model_copy(update={"plan": plan}),)})


def _without_limit(instance: Instance, field: str) -> Instance:
    return instance.model_copy(update={"limits": instance.limits.model_copy(update={field: None})})


def _without_storage(instance: Instance) -> Instance:
    return instance.model_copy(
        update={
            "offers": instance.offers.model_copy(update={"storage": ()}),
            "inventory": tuple(item.model_copy(update={"storage": None}) for item in instance.inventory),
        }
    )


def _with_many(instance: Instance) -> Instance:
    """As many servers of each owned type as the space holds, with a network where none is stated."""
    return instance.model_copy(update={"inventory": tuple(_many(item) for item in instance.inventory)})


def _many(item: Owned) -> Owned:
    changes: dict[str, Any] = {"count": max(item.count, CEILING_GPUS // item.server.gpus)}
    if item.fabric is None:
        switch = next((s for s in all_switches() if s.ports_at(item.server.nic_bandwidth_bytes_per_s)), None)
        changes |= {"fabric": None if switch is None else "fat-tree", "switch": switch}
    return item.model_copy(update=changes)
