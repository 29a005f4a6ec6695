"""A partial design -> a design, where nothing is left to decide. Floor 4. In: an instance and a `Partial`.

A missing part is filled in when it follows from what is stated (a degree from the GPUs, a rule that leaves one value)
or when the instance leaves one choice. Whatever is filled is said; what could be several things is a fault that lists
them. One choice is the model's own: the checkpoint interval that costs the purchase least time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from codesign.cost import legality, reliability
from codesign.cost.legality import Case
from codesign.cost.market import Market, NetworkOption, ServerOption
from codesign.cost.space import PLAN_DECISIONS, ZERO, layouts, placements
from codesign.design import (
    DIMENSIONS,
    TIERS,
    Design,
    Layout,
    Network,
    Placement,
    Plan,
    Purchase,
    StoragePurchase,
)
from codesign.errors import SpecError
from codesign.exact.filling import Filling, layout_said, listed, said
from codesign.exact.partial import Partial, read_partial
from codesign.expr import Decision, Space
from codesign.spec.instance import Instance
from codesign.spec.limits import Limits
from codesign.spec.workload import RECOMPUTE

NETWORK_FIELDS = ("kind", "tiers", "switch", "oversubscription", "nic")
STORAGE_FIELDS = ("product", "units")


@dataclass(frozen=True)
class Completed:
    """A whole design, and in words what was filled in."""

    design: Design
    filled: tuple[str, ...]


def read_design(path: Path | str, instance: Instance) -> Completed:
    """Read a design file and complete it.

    Parameters
    ----------
    path : a solution, the `design` part of one, or a design in the plain form, whole or partial.

    Raises
    ------
    SpecError
        With every fault: of the file, of names that the instance does not have, and of parts that are missing and
        could be more than one thing.
    """
    return complete(instance, read_partial(path))


def complete(instance: Instance, partial: Partial) -> Completed:
    """Complete what a file states. SpecError as `read_design`."""
    return _Completion(instance, partial).completed()


class _Completion(Filling):
    def __init__(self, instance: Instance, partial: Partial) -> None:
        super().__init__(partial)
        self.instance = instance
        self.workload = instance.workloads[0]
        # What a design may take is for the judgement to say; what can be had does not depend on it.
        self.market = Market(instance.model_copy(update={"limits": Limits()}))
        profile = legality.PROFILES[self.workload.framework]
        self.case = Case(self.workload.model, self.workload.sequence_length, self.workload.global_batch, profile)

    def completed(self) -> Completed:
        self._workload()
        option = self._server()
        self._usual_values()
        while self._plan_values() or self._degrees(option):
            pass
        self._missing_plan(option)
        network = self._network(option)
        placement = self._placement(option, network)
        self._storage()
        self._interval(option)
        if self.faults:
            raise SpecError(self.faults)
        assert placement is not None  # or there were faults
        plan = {name: self.get(f"plan.{name}") for name in PLAN_DECISIONS}
        purchase = {name: self.get(f"purchase.network.{name}") for name in NETWORK_FIELDS}
        design = Design(
            self.get("workload"),
            Plan(**plan),
            placement,
            Purchase(
                self.get("purchase.server"),
                self.get("purchase.servers"),
                Network(**purchase),
                StoragePurchase(self.get("purchase.storage.product"), self.get("purchase.storage.units")),
                self.get("purchase.checkpoint_interval_s"),
            ),
        )
        return Completed(design, tuple(self.filled))

    # -- workload and server

    def _workload(self) -> None:
        stated, name = self.get("workload"), self.workload.name
        if stated is None:
            self.fill("workload", name, "the only workload of the instance")
        elif stated != name:
            hint = "the workload of the instance has this name"
            self.faults.append(self.partial.fault("workload", f"'{stated}'", f"'{name}'", hint))

    def _server(self) -> ServerOption | None:
        options = {option.server.name: option for option in self.market.servers}
        stated = self.get("purchase.server")
        if stated is None and len(options) == 1:
            (stated,) = options
            self.fill("purchase.server", stated, "the only server type of the instance")
        elif stated is None:
            self.missing("purchase.server", list(options))
        elif stated not in options:
            expected = "a server that the instance offers or owns"
            hint = f"which is {listed(list(options))}"
            self.faults.append(self.partial.fault("purchase.server", f"'{stated}'", expected, hint))
        option = options.get(stated) if stated is not None else None
        if option is not None and option.most == 1 and self.get("purchase.servers") is None:
            self.fill("purchase.servers", 1, f"the instance has room for one {option.server.name}")
        return option

    # -- the plan

    def _choices(self, name: str) -> tuple[list[Any], bool]:
        """Values that a plan decision can have beside what is known, and whether the instance states them."""
        stated = getattr(self.workload.plan, name)
        natural: dict[str, Iterable[Any]] = {
            "tp": legality.divisors(self.workload.model.heads),
            "cp": legality.divisors(self.workload.sequence_length),
            "ep": range(1, max(self.workload.model.experts, 1) + 1),
            "pp": range(1, self.workload.model.layers + 1),
            "dp": legality.divisors(self.workload.global_batch),
            "micro_batch": legality.divisors(self.workload.global_batch),
            "virtual_stages": range(1, self.workload.model.layers + 1),
            "recompute": RECOMPUTE,
            "zero": ZERO,
            "expert_tp": legality.divisors(max(self.workload.model.expert_ffn_hidden, 1)),
            **legality.TEXTS,
        }
        choices = list(dict.fromkeys(stated if stated is not None else natural[name]))
        known = {n: self.get(f"plan.{n}") for n in PLAN_DECISIONS if self.get(f"plan.{n}") is not None}
        keep = np.ones(len(choices), dtype=bool)
        plan = {**known, name: np.asarray(choices)}
        for rule in legality.RULES:
            if name in rule.decisions and set(rule.decisions) <= set(plan):
                keep &= np.broadcast_to(legality.holds(rule, self.case, plan), keep.shape)
        return [one for one, kept in zip(choices, keep, strict=True) if kept], stated is not None

    def _usual_values(self) -> None:
        """Fill the decisions that most frameworks leave alone, where neither design nor instance says otherwise."""
        for name, usual in legality.USUAL.items():
            stated = getattr(self.workload.plan, name)
            if self.get(f"plan.{name}") is None and (stated is None or usual in stated):
                self.fill(f"plan.{name}", usual, "as usual, where a design does not say")

    def _plan_values(self) -> bool:
        """Fill one decision of the plan that has one value left."""
        for name in PLAN_DECISIONS:
            if self.get(f"plan.{name}") is None:
                choices, stated = self._choices(name)
                if len(choices) == 1:
                    reason = "the instance leaves no other" if stated else "no other is legal here"
                    self.fill(f"plan.{name}", choices[0], reason)
                    return True
        return False

    def _degrees(self, option: ServerOption | None) -> bool:
        """Fill one degree, or the number of servers, that follows from the rest."""
        unknown = [d for d in DIMENSIONS if self.get(f"plan.{d}") is None]
        for dimension in unknown:
            layout = self._layout(dimension)
            if None not in layout:
                self.fill(f"plan.{dimension}", prod(layout), "the product of its layout")
                return True
        if option is None:
            return False
        servers, gpus = self.get("purchase.servers"), option.server.gpus
        used = self._tier("domain") or gpus  # unless the placement says otherwise, every GPU works
        if servers is not None and len(unknown) == 1:
            others = prod(self.get(f"plan.{d}") for d in DIMENSIONS if d not in unknown)
            if servers * used % others == 0:
                reason = f"what fills {used} GPUs in each of {servers} servers"
                self.fill(f"plan.{unknown[0]}", servers * used // others, reason)
                return True
        if servers is None and not unknown:
            world = prod(self.get(f"plan.{d}") for d in DIMENSIONS)
            leaf, pod = self._tier("leaf"), self._tier("pod")
            if leaf is not None and pod is not None:
                self.fill("purchase.servers", leaf * pod, "what the placement fills")
                return True
            if world % used == 0:
                self.fill("purchase.servers", world // used, f"{world} ranks on {used} GPUs a server")
                return True
            if world < gpus:
                self.fill("purchase.servers", 1, f"{world} ranks fit into one {option.server.name}")
                return True
        return False

    def _missing_plan(self, option: ServerOption | None) -> None:
        """Faults for what is still open in the plan, and for the number of servers."""
        for name in PLAN_DECISIONS:
            if self.get(f"plan.{name}") is None:
                choices, _ = self._choices(name)
                hint = "" if choices else "none keeps the rules with what is stated"
                self.missing(f"plan.{name}", choices, hint)
        if self.get("purchase.servers") is None and option is not None:
            degrees = [self.get(f"plan.{d}") for d in DIMENSIONS]
            world = prod(degrees) if None not in degrees else None
            gpus = option.server.gpus
            fitting = [] if world is None else [n for n in legality.divisors(world) if world // n <= gpus]
            choices = [n for n in fitting if n <= option.most] or [f"a number up to {option.most}"]
            self.missing("purchase.servers", choices)

    # -- network

    def _network(self, option: ServerOption | None) -> NetworkOption | None:
        known = self.market.networks
        stated = {n: self.get(f"purchase.network.{n}") for n in NETWORK_FIELDS}
        matching = [o for o in known if all(v is None or getattr(o.network, n) == v for n, v in stated.items())]
        if not matching:
            self.unknown("purchase.network", stated, [one.network for one in known])
            return None
        if None not in stated.values():
            return matching[0]
        servers = self.get("purchase.servers")
        if option is None or servers is None:
            return None
        if servers > option.most:
            expected = f"at most {option.most} x {option.server.name}"
            self.faults.append(self.partial.fault("purchase.servers", str(servers), expected))
            return None
        fitting = self._joining(option, servers)
        left = list(dict.fromkeys(one.network for one in matching if one.network in fitting))
        if len(left) == 1:
            open_ = [name for name in NETWORK_FIELDS if stated[name] is None]
            self.values.update({f"purchase.network.{name}": getattr(left[0], name) for name in open_})
            told = ", ".join(f"{name} {said(getattr(left[0], name))}" for name in open_)
            reason = f"the only network of the instance for {servers} x {option.server.name}"
            self.filled.append(f"purchase.network = {told}: {reason}")
            return next(one for one in matching if one.network == left[0])
        self.several("purchase.network", stated, left)
        return None

    def _joining(self, option: ServerOption, servers: int) -> set[Network]:
        """Networks that can join so many servers, with as few tiers as can be."""
        space = self.market.decisions((servers,))
        rows = self.market.hardware(space)
        mine = rows.where(rows.columns["server"] == self.market.servers.index(option))
        return {self.market.networks[int(code)].network for code in np.unique(mine.columns["network"])}

    # -- placement

    def _layout(self, dimension: str) -> tuple[int | None, ...]:
        return tuple(self.get(f"placement.{dimension}.{tier}") for tier in TIERS)

    def _tier(self, tier: str) -> int | None:
        """Product of the factors of a tier, if all are known."""
        factors = [self.get(f"placement.{d}.{tier}") for d in DIMENSIONS]
        return None if None in factors else prod(factors)

    def _placement(self, option: ServerOption | None, network: NetworkOption | None) -> Placement | None:
        stated = {d: self._layout(d) for d in DIMENSIONS}
        if all(None not in layout for layout in stated.values()):
            return Placement(**{d: Layout(*layout) for d, layout in stated.items()})  # type: ignore[arg-type]
        degrees = {d: self.get(f"plan.{d}") for d in DIMENSIONS}
        servers = self.get("purchase.servers")
        if option is None or network is None or servers is None or None in degrees.values():
            return None
        world, name = prod(degrees.values()), f"placement.{next(d for d in DIMENSIONS if None in stated[d])}.domain"
        if world % servers or world // servers > option.server.gpus:
            hint = f"{world} ranks do not stand on {servers} x {option.server.name} of {option.server.gpus} GPUs"
            self.faults.append(self.partial.fault(name, "nothing", "degrees that fill the servers evenly", hint))
            return None
        counted = self.market.counted(network, option.server, np.asarray([servers]))
        leaf = self._tier("leaf") or int(counted.leaf_block[0])
        if not counted.feasible[0] or servers % leaf:
            hint = f"{network.network.kind} cannot join {servers} servers" if not counted.feasible[0] else ""
            self.faults.append(self.partial.fault(name, "nothing", f"leaf groups that divide {servers} servers", hint))
            return None
        return self._placed(stated, degrees, world // servers, leaf, servers // leaf)

    def _placed(
        self, stated: dict[str, tuple[int | None, ...]], degrees: dict[str, int], used: int, leaf: int, pod: int
    ) -> Placement | None:
        allowed = {
            d: tuple(
                one
                for one in layouts(degrees[d], used, leaf)
                if all(value is None or value == each for value, each in zip(stated[d], one, strict=True))
            )
            for d in DIMENSIONS
        }
        tiers = f"{used} GPUs a server, {leaf} servers a leaf group, {pod} leaf group{'s' * (pod != 1)}"
        found = []
        if all(allowed.values()):
            space = Space([Decision(f"{d}_layout", allowed[d]) for d in DIMENSIONS])
            rows = placements(space, degrees, used, leaf, pod)
            found = [
                {d: allowed[d][int(rows.columns[f"{d}_layout"][row])] for d in DIMENSIONS} for row in range(len(rows))
            ]
        open_ = [d for d in DIMENSIONS if None in stated[d]]
        if len(found) == 1:
            for dimension in open_:
                layout = found[0][dimension]
                for tier in TIERS:
                    self.values[f"placement.{dimension}.{tier}"] = getattr(layout, tier)
                if layout.degree > 1:
                    reason = f"the only layout that fills {tiers}"
                    self.filled.append(f"placement.{dimension} = {layout_said(layout)}: {reason}")
            return Placement(**found[0])
        if not found:
            hint = f"no layout of what is left fills {tiers}"
            place = f"placement.{open_[0]}.domain"
            self.faults.append(self.partial.fault(place, "nothing", "another layout or other degrees", hint))
        for dimension in open_ if found else ():
            choices = list(dict.fromkeys(one[dimension] for one in found))
            if len(choices) > 1:
                texts = [layout_said(one) for one in choices]
                self._layouts_missing(dimension, texts, tiers)
        return None

    def _layouts_missing(self, dimension: str, choices: Sequence[str], tiers: str) -> None:
        name = f"placement.{dimension}.domain"
        path = self.partial.paths[name][:-1]
        expected = listed(choices)
        hint = f"ranks in a server x servers of a leaf group x leaf groups; they fill {tiers}"
        self.faults.append(self.partial.source.fault(path, "no whole layout", expected, hint))

    # -- storage

    def _storage(self) -> None:
        stated = {n: self.get(f"purchase.storage.{n}") for n in STORAGE_FIELDS}
        known = list(dict.fromkeys(option.purchase for option in self.market.storages))
        matching = [one for one in known if all(v is None or getattr(one, n) == v for n, v in stated.items())]
        if not matching:
            self.unknown("purchase.storage", stated, known)
        elif len(matching) == 1:
            (one,) = matching
            open_ = [name for name in STORAGE_FIELDS if stated[name] is None]
            for name in open_:
                self.values[f"purchase.storage.{name}"] = getattr(one, name)
            if open_:
                said = f"{one.units} x {one.product}: the only storage" if one.units else "none: there is no storage"
                self.filled.append(f"purchase.storage = {said} in the instance")
        else:
            self.several("purchase.storage", stated, matching)

    def _interval(self, option: ServerOption | None) -> None:
        name = "purchase.checkpoint_interval_s"
        wanted = (self.get("purchase.storage.product"), self.get("purchase.storage.units"))
        storage = next((o for o in self.market.storages if (o.purchase.product, o.purchase.units) == wanted), None)
        servers, stated = self.get("purchase.servers"), self.get(name)
        if storage is None or (stated is None and (option is None or servers is None)):
            return
        if storage.product is None:
            if stated:
                hint = "the instance has no storage, so that nothing is saved"
                self.faults.append(self.partial.fault(name, f"{stated:g} s", "0, or no interval", hint))
            self.values[name] = 0.0
        elif stated is None:
            assert option is not None
            intervals = np.asarray(reliability.INTERVALS_S)
            costs = self.market.overhead(option, storage, np.asarray(servers), intervals)
            best = float(intervals[int(np.argmin(costs))])
            self.fill(name, best, "the interval at which saving and failures cost this purchase least time")
        elif stated == 0:
            self.faults.append(self.partial.fault(name, "0 s", "a time above 0, such as 30min"))
