"""The space of designs of an instance: which values each decision may take, and which go together. Floor 3.

In: an instance. Out: a `Space` with all decisions, and `Candidates`: the legal combinations of parallel degrees with
servers that hold them. Values that the user states are taken as stated; others come from the default lists
documented at `default_values`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from codesign.cost import legality
from codesign.cost.legality import Case
from codesign.cost.market import Market
from codesign.design import DIMENSIONS, Layout
from codesign.errors import Fault, SpecError
from codesign.expr import Decision, Relation, Space
from codesign.spec.instance import Instance
from codesign.spec.workload import RECOMPUTE, Workload

PLAN_DECISIONS = (
    "tp", "cp", "ep", "expert_tp", "pp", "dp", "micro_batch", "virtual_stages", "schedule", "recompute", "zero",
    "shard_within", "context_exchange",
)  # fmt: skip
MOST_EXPERT_PARALLEL = 128
"""Expert parallelism is proposed up to this; a larger one can be stated."""

ZERO = (0, 1, 2, 3)

LEAST_TOKENS_A_RANK = 2048
"""Context parallelism is proposed only while a rank keeps this many tokens of a sequence (a state of the space)."""
MOST_MICRO_BATCH = 16
"""Micro-batches proposed are powers of two up to this; a larger one can be stated."""


def layouts(degree: int, domain: int, leaf: int) -> list[Layout]:
    """All ways to spread a degree over the tiers, at most `domain` and `leaf` in the inner two; most local first."""
    found = []
    for inner in reversed(legality.divisors(degree)):
        if inner <= domain:
            found += [
                Layout(inner, middle, degree // inner // middle)
                for middle in reversed(legality.divisors(degree // inner))
                if middle <= leaf
            ]
    return found


def default_values(workload: Workload, case: Case, domain: int) -> dict[str, tuple[Any, ...]]:
    """Values that are proposed for each plan decision that the user leaves free.

    tp: legal divisors of the heads up to twice the largest domain; cp: powers of two that leave `LEAST_TOKENS_A_RANK`
    tokens a rank; ep: divisors of the experts up to `MOST_EXPERT_PARALLEL`; pp: every depth that the layers can be
    split into; dp: every divisor of the batch; micro-batch: powers of two that divide the batch; virtual stages: every
    legal count; recompute: nothing, attention core, feed-forward, whole layers; ZeRO: all; schedules, and the ranks
    that states are sharded over: what the framework's profile proposes; no expert tensor parallelism; a ring for
    contexts.
    """
    model, batch = workload.model, workload.global_batch
    pp = [p for p in range(1, model.layers + 1) if _alone(case, "layer split", pp=p, virtual_stages=1)]
    chunks = {
        v
        for p in pp
        if p > 1
        for v in range(2, model.layers // p + 1)
        if _alone(case, "layer split", pp=p, virtual_stages=v)
    }
    cp = [1]
    while workload.sequence_length // (2 * cp[-1]) >= LEAST_TOKENS_A_RANK and case.profile.context_parallel:
        cp.append(2 * cp[-1])
    micro_batch = [1]
    while 2 * micro_batch[-1] <= MOST_MICRO_BATCH and batch % (2 * micro_batch[-1]) == 0:
        micro_batch.append(2 * micro_batch[-1])
    return {
        "tp": tuple(t for t in legality.divisors(model.heads) if t <= 2 * domain and _tp_is_legal(case, t)),
        "cp": tuple(cp),
        "ep": tuple(e for e in legality.divisors(model.experts) if e <= MOST_EXPERT_PARALLEL)
        if model.experts
        else (1,),
        "pp": tuple(pp),
        "dp": legality.divisors(batch),
        "micro_batch": tuple(micro_batch),
        "virtual_stages": (1, *sorted(chunks)) if case.profile.interleaving else (1,),
        "recompute": RECOMPUTE,
        "zero": ZERO,
        "schedule": case.profile.schedules,
        "shard_within": case.profile.shards_within if not model.experts else ("group",),
        "expert_tp": (1,),
        "context_exchange": ("ring",),
    }


def _alone(case: Case, name: str, **plan: int) -> bool:
    return bool(legality.holds(legality.rule(name), case, plan))


def _tp_is_legal(case: Case, tp: int) -> bool:
    return all(bool(legality.holds(rule, case, {"tp": tp})) for rule in legality.RULES if rule.decisions == ("tp",))


def plan_values(instance: Instance, workload: Workload, case: Case, domain: int) -> dict[str, tuple[Any, ...]]:
    """Values of each plan decision: the stated ones where there are any, else the defaults.

    Raises
    ------
    SpecError
        For a stated value that breaks a rule whatever the other decisions are, at the place where it stands.
    """
    values = default_values(workload, case, domain)
    neutral = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "dp": 1, "micro_batch": 1, "virtual_stages": 1, "zero": 0}
    pinned = neutral | {
        name: stated[0] for name in neutral if (stated := getattr(workload.plan, name)) is not None and len(stated) == 1
    }
    faults: list[Fault] = []
    for name in PLAN_DECISIONS:
        stated = getattr(workload.plan, name)
        if stated is None:
            continue
        values[name] = tuple(dict.fromkeys(stated))
        if name in ("recompute", "virtual_stages", *legality.TEXTS):
            continue  # no value of these is wrong whatever the others are; `virtual_stages` is 1 in the neutral plan
        for value in stated:
            # What expert groups are carved from is not known of one value alone.
            broken = [one for one in legality.check(case, {**neutral, name: value}) if one.rule != "expert groups"]
            # Told with what else is pinned: the nearest legal batch, say, is another one for a pinned micro-batch.
            told = {each.rule: each for each in legality.check(case, {**pinned, name: value})} if broken else {}
            if broken:
                faults.append(
                    instance.fault(
                        f"workloads.0.plan.{name}",
                        found=str(value),
                        expected=f"a value that keeps the rules ({', '.join(each.rule for each in broken)})",
                        hint="; ".join(told.get(each.rule, each).message for each in broken[:2]),
                    )
                )
    if faults:
        raise SpecError(tuple(faults))
    return values


@dataclass(frozen=True)
class DesignSpace:
    """All decisions of an instance, and the legal joint choices of degrees and servers.

    Attributes
    ----------
    degrees : over server, servers, used, tp, cp, context_exchange, ep, expert_tp, pp, dp: `servers x used` GPUs hold
        the ranks.
    schedules : over pp, dp, micro_batch, virtual_stages, schedule.
    options : over zero, pp, recompute, shard_within.
    hardware, storage : see `Market`.
    """

    instance: Instance
    workload: Workload
    case: Case
    market: Market
    space: Space
    degrees: Relation
    schedules: Relation
    options: Relation
    hardware: Relation
    storage: Relation

    def placements(self, degrees: Mapping[str, int], used: int, leaf: int, pod: int) -> Relation:
        """Every placement of given degrees that fills `used` GPUs a server, `leaf` servers a group, `pod` groups."""
        return placements(self.space, degrees, used, leaf, pod)


def placements(space: Space, degrees: Mapping[str, int], used: int, leaf: int, pod: int) -> Relation:
    """See `DesignSpace.placements`; over the four layout decisions."""
    fitting: list[list[int]] = []
    for dimension in DIMENSIONS:
        values = space[f"{dimension}_layout"].values
        fitting.append(
            [
                code
                for code, value in enumerate(values)
                if value.degree == degrees[dimension]
                and used % value.domain == 0
                and leaf % value.leaf == 0
                and pod % value.pod == 0
            ]
        )
    grids = np.meshgrid(*(np.asarray(codes, dtype=np.intp) for codes in fitting), indexing="ij")
    columns = {f"{d}_layout": grid.reshape(-1) for d, grid in zip(DIMENSIONS, grids, strict=True)}
    filled = np.ones((len(grids[0].reshape(-1)), 3), dtype=np.int64)
    for dimension in DIMENSIONS:
        factors = np.asarray(space[f"{dimension}_layout"].values, dtype=np.int64).reshape(-1, 3)
        filled *= factors[columns[f"{dimension}_layout"]]
    keep = np.all(filled == np.asarray([used, leaf, pod]), axis=1)
    return Relation("placements", columns).where(keep)


def design_space(instance: Instance, market: Market) -> DesignSpace:
    """Build the space.

    Raises
    ------
    SpecError
        If no combination of the stated plan values is legal, with the rules that stand in the way.
    """
    workload = instance.workloads[0]
    case = Case(
        workload.model,
        workload.sequence_length,
        workload.global_batch,
        legality.PROFILES[workload.framework],
    )
    domain = max(option.server.gpus for option in market.servers)
    values = plan_values(instance, workload, case, domain)
    plan_space = Space([Decision(name, values[name]) for name in PLAN_DECISIONS])

    degrees, schedules, options = (
        _legal(Relation.product(name, plan_space, scope), plan_space, case)
        for name, scope in (
            ("degrees", ("tp", "cp", "context_exchange", "ep", "expert_tp", "pp", "dp")),
            ("schedules", ("pp", "dp", "micro_batch", "virtual_stages", "schedule")),
            ("options", ("zero", "pp", "recompute", "shard_within")),
        )
    )
    if not (len(degrees) and len(schedules) and len(options)):
        raise SpecError((_no_plan(instance, workload, case, values),))

    world = np.prod([degrees.values(plan_space, d) for d in DIMENSIONS], axis=0).astype(np.int64)
    rows, kinds, counts, fills = _fit_into_servers(world, market)
    all_counts = tuple(int(n) for n in np.unique(counts)) or (1,)
    all_fills = tuple(int(n) for n in np.unique(fills)) or (1,)
    hardware_space = market.decisions(all_counts)
    leaf_most = max((value for value in hardware_space["leaf_block"].values), default=1)
    layout_decisions = [
        Decision(
            f"{d}_layout",
            tuple(v for degree in values[d] for v in layouts(degree, domain, int(leaf_most))),
        )
        for d in DIMENSIONS
    ]
    space = Space([*plan_space.decisions, *layout_decisions, Decision("used", all_fills), *hardware_space.decisions])
    columns = {name: column[rows] for name, column in degrees.columns.items()}
    columns["server"] = kinds
    columns["servers"] = np.searchsorted(np.asarray(all_counts), counts).astype(np.intp)
    columns["used"] = np.searchsorted(np.asarray(all_fills), fills).astype(np.intp)
    return DesignSpace(
        instance=instance,
        workload=workload,
        case=case,
        market=market,
        space=space,
        degrees=Relation("degrees", columns),
        schedules=schedules,
        options=options,
        hardware=market.hardware(space),
        storage=market.storage(space),
    )


def _legal(relation: Relation, space: Space, case: Case) -> Relation:
    """Tuples that keep every rule whose decisions the relation has."""
    plan = {name: np.asarray(space[name].values)[column] for name, column in relation.columns.items()}
    keep = np.ones(len(relation), dtype=bool)
    for rule in legality.RULES:
        if set(rule.decisions) <= set(plan):
            keep &= legality.holds(rule, case, plan)
    return relation.where(keep)


def _fit_into_servers(world: np.ndarray[Any, np.dtype[np.int64]], market: Market) -> tuple[Any, Any, Any, Any]:
    """Rows of degrees, server options, server counts and GPUs used in each server.

    A server is filled at least half where there are several: a plan that leaves more idle is not proposed.
    """
    rows, kinds, counts, fills = [], [], [], []
    for kind, option in enumerate(market.servers):
        for used in range(1, option.server.gpus + 1):
            servers = world // used
            fits = (world % used == 0) & (servers <= option.most) & ((servers == 1) | (2 * used >= option.server.gpus))
            found = np.flatnonzero(fits)
            rows.append(found)
            kinds.append(np.full(len(found), kind, dtype=np.intp))
            counts.append(servers[found])
            fills.append(np.full(len(found), used, dtype=np.int64))
    if not rows:
        empty = np.zeros(0, dtype=np.intp)
        return empty, empty, empty, empty
    return np.concatenate(rows), np.concatenate(kinds), np.concatenate(counts), np.concatenate(fills)


def _no_plan(instance: Instance, workload: Workload, case: Case, values: Mapping[str, Sequence[Any]]) -> Fault:
    """The rule that the stated values break together, shown on the combination that breaks fewest."""
    stated = [n for n in PLAN_DECISIONS if getattr(workload.plan, n) is not None]
    names = list(PLAN_DECISIONS)
    most = 4096
    lists = [tuple(values[n]) if n in stated else tuple(values[n])[:3] for n in names]
    while prod(len(one) for one in lists) > most:
        longest = max(range(len(lists)), key=lambda i: len(lists[i]))
        lists[longest] = lists[longest][: len(lists[longest]) // 2]
    best = min(
        (legality.check(case, dict(zip(names, combination, strict=True))) for combination in product(*lists)),
        key=len,
    )
    return instance.fault(
        "workloads.0.plan",
        found=", ".join(f"{n}: {list(getattr(workload.plan, n))}" for n in stated) or "no restriction",
        expected="at least one legal combination of values",
        hint="; ".join(violation.message for violation in best) or "free one of the pinned values",
    )
