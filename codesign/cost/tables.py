"""Tables over decisions, filled from the formulas of this floor. Floor 3. In: a design space. Out: `Table`s.

A formula works on arrays that broadcast; here it is called once with the value lists of its decisions laid along
different axes, and what it returns is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from codesign.cost import collectives, formulas, legality
from codesign.cost.formulas import UNSTATED, Formula
from codesign.cost.market import Market, ServerOption
from codesign.cost.space import DesignSpace
from codesign.design import TIERS
from codesign.expr import Space, Table

Filling = Callable[..., Any]


class Tables:
    """Makes tables for one design space."""

    def __init__(self, design_space: DesignSpace) -> None:
        self.design_space = design_space
        self.space: Space = design_space.space
        self.market: Market = design_space.market
        self.workload = design_space.workload
        self.assumptions = design_space.instance.assumptions

    def of_plan(
        self, name: str, scope: Sequence[str], value: Filling, unit: str = "", stated: Formula = UNSTATED
    ) -> Table:
        """Table over decisions of the plan; `value(*arrays)` gets the decisions' values."""
        return Table(name, tuple(scope), self._filled(scope, value), unit, *stated)

    def of_server(
        self, name: str, scope: Sequence[str], value: Filling, unit: str = "", stated: Formula = UNSTATED
    ) -> Table:
        """Table over the server type and decisions of the plan; `value(option, *arrays)`."""
        slices = [self._filled(scope, lambda *arrays, o=option: value(o, *arrays)) for option in self.market.servers]
        return Table(name, ("server", *scope), np.stack(slices), unit, *stated)

    def has(self, decision: str, value: Any) -> bool:
        """Whether the space proposes a value of a decision."""
        return value in self.space[decision].values

    def where(self, decision: str, value: Any) -> Table:
        """1 where a decision has a value, else 0."""
        return self.of_plan(f"{decision} is {value}", (decision,), lambda d: d == value, "", formulas.CHOSEN)

    def of_schedule(
        self, name: str, value: Filling, unit: str = "", stated: Formula = UNSTATED, *, schedule: str
    ) -> Table:
        """Table over the shape of the pipeline, 0 under other schedules than the one that is named.

        `value(pp, virtual_stages, micro_batches)` gets arrays of one shape.
        """
        batch = self.workload.global_batch

        def filled(p: Any, v: Any, d: Any, b: Any, *kinds: Any) -> Any:
            m = np.maximum(1, legality.micro_batches(batch, d, b))
            found = value(*np.broadcast_arrays(p, v, m))
            return np.where(kinds[0] == schedule, found, 0.0) if kinds else found

        several = ("schedule",) if self.space.size("schedule") > 1 else ()
        return self.of_plan(name, ("pp", "virtual_stages", "dp", "micro_batch", *several), filled, unit, stated)

    def of_layout(
        self,
        name: str,
        dimensions: tuple[str, ...],
        value: Callable[[Sequence[int]], Sequence[float]],
        stated: Formula = UNSTATED,
    ) -> tuple[Table, ...]:
        """One table a tier, over the layouts of one or two dimensions (merged); `value(layout)` has a number a tier."""
        lists = [self.space[f"{d}_layout"].values for d in dimensions]
        shape = tuple(len(one) for one in lists)
        known: dict[tuple[int, ...], Sequence[float]] = {}
        values = np.zeros((*shape, len(TIERS)))
        for index in np.ndindex(shape):
            layout = tuple(lists[0][index[0]])
            for axis in range(1, len(lists)):
                layout = collectives.merged(layout, lists[axis][index[axis]])
            if layout not in known:
                known[layout] = value(layout)
            values[index] = known[layout]
        scope = tuple(f"{d}_layout" for d in dimensions)
        return tuple(
            Table(f"{name}, {tier}", scope, np.ascontiguousarray(values[..., i]), "", *stated)
            for i, tier in enumerate(TIERS)
        )

    def of_expert_groups(
        self,
        name: str,
        which: str,
        value: Callable[[Sequence[Any]], Sequence[Any]],
        stated: Formula = UNSTATED,
    ) -> tuple[Table, ...]:
        """One table a tier, over the layouts of a stage's ranks and the degrees of experts.

        `value(layout)` has an array a tier. `which` is `cut` for the ranks that share each expert, `inner` for the
        expert-parallel group, `outer` for the ranks that hold the same parts of the same experts.
        """
        factors = self._expert_factors[which]
        scope = ("tp_layout", "cp_layout", "dp_layout", "ep", "expert_tp")
        found = [np.where(self._expert_factors["whole"], np.asarray(v, dtype=np.float64), 0.0) for v in value(factors)]
        return tuple(
            Table(f"{name}, {tier}", scope, np.ascontiguousarray(v), "", *stated)
            for tier, v in zip(TIERS, found, strict=True)
        )

    @cached_property
    def _expert_factors(self) -> dict[str, Any]:
        """Factors by tier of the ranks that share an expert (`cut`), of expert groups (`inner`), of equals (`outer`).

        Ranks that share an expert are `expert_tp` consecutive ranks of a stage, a group is `ep` such blocks. They take
        up the digits of tp, cp and dp in rank order, each within its dimension from the domain outwards
        (`codesign.design.placement`). Where one ends inside a digit that it does not divide, groups differ, and `whole`
        is false: nothing is counted, which is below any of them.
        """
        layouts = [self.space[f"{d}_layout"].values for d in ("tp", "cp", "dp")]
        ep = np.asarray(self.space["ep"].values, dtype=np.int64)[:, None]
        expert_tp = np.asarray(self.space["expert_tp"].values, dtype=np.int64)[None, :]
        shape = (*(len(one) for one in layouts), ep.shape[0], expert_tp.shape[1])
        left = [np.broadcast_to(degree, shape).copy() for degree in (expert_tp, ep)]
        factors = [np.ones((len(TIERS), *shape), dtype=np.int64) for _ in range(3)]
        whole = np.ones(shape, dtype=bool)
        for axis, one in enumerate(layouts):
            for tier in range(len(TIERS)):
                across = [1, 1, 1, 1, 1]
                across[axis] = len(one)
                rest = np.asarray([layout[tier] for layout in one], dtype=np.int64).reshape(across)
                for which in range(2):
                    taken = np.minimum(left[which], rest)
                    whole &= (left[which] % taken == 0) & (rest % taken == 0)
                    factors[which][tier] *= taken
                    left[which] //= taken
                    rest = rest // taken
                factors[2][tier] *= np.broadcast_to(rest, shape)
        cut, inner, outer = (tuple(one) for one in factors)
        return {"cut": cut, "inner": inner, "outer": outer, "whole": whole & (left[0] == 1) & (left[1] == 1)}

    @cached_property
    def seconds_per_byte(self) -> tuple[Table, ...]:
        """What a byte costs a rank at each tier."""
        return self._rate_tables("seconds_per_byte", "s/byte")

    @cached_property
    def latency_s(self) -> tuple[Table, ...]:
        """What a message costs at each tier."""
        return self._rate_tables("latency_s", "s")

    @cached_property
    def reducing(self) -> tuple[tuple[tuple[float, tuple[Table, ...]], ...], ...]:
        """By tier: the shares of bandwidth that switches reach where they reduce, each with what chooses it."""
        rates = [[self.rates(o, code) for code in range(len(self.market.networks))] for o in self.market.servers]
        found = []
        for tier, name in enumerate(TIERS):
            reached = np.array([[one.in_switch[tier] for one in row] for row in rates])
            reached, scope = (reached[:, 0], ("server",)) if tier == 0 else (reached, ("server", "network"))
            several = np.unique(reached)
            chosen = [
                (Table(f"{name} reduces at {share:g}", scope, (reached == share) * 1.0, "", *formulas.REDUCES),)
                for share in several
            ]
            found.append(tuple(zip(several.tolist(), chosen if len(several) > 1 else [()], strict=True)))
        return tuple(found)

    def reduces(self, tiers: Sequence[int]) -> bool:
        """Whether switches of one of these tiers reduce, on some hardware of the space."""
        return any(share > 0 for tier in tiers for share, _ in self.reducing[tier])

    def of_storage(self, name: str, value: Filling, unit: str = "", stated: Formula = UNSTATED) -> Table:
        """Table over server, servers, storage; `value(server option, storage option, counts)`."""
        counts = np.asarray(self.space["servers"].values, dtype=np.int64)
        values = np.array([[value(o, s, counts) for s in self.market.storages] for o in self.market.servers])
        return Table(name, ("server", "servers", "storage"), np.swapaxes(values, 1, 2).copy(), unit, *stated)

    def of_hardware(self, name: str, value: Filling, unit: str = "", stated: Formula = UNSTATED) -> Table:
        """Table over server, servers, network; `value(server option, network option, counts)`."""
        counts = np.asarray(self.space["servers"].values, dtype=np.int64)
        values = np.array([[value(o, n, counts) for n in self.market.networks] for o in self.market.servers])
        return Table(name, ("server", "servers", "network"), np.swapaxes(values, 1, 2).copy(), unit, *stated)

    def rates(self, option: ServerOption, network_code: int) -> collectives.TierRates:
        """Rates of a server on a network."""
        network = self.market.networks[network_code]
        return self.market.rates(option, network)

    def _filled(self, scope: Sequence[str], value: Filling) -> npt.NDArray[np.float64]:
        arrays = []
        for axis, decision in enumerate(scope):
            shape = [1] * len(scope)
            shape[axis] = self.space.size(decision)
            values = self.space[decision].values
            if decision.endswith("_layout"):
                values = tuple(layout.domain for layout in values)  # a layout stands for its ranks in the domain
            arrays.append(np.asarray(values).reshape(shape))
        filled = np.broadcast_to(np.asarray(value(*arrays), dtype=np.float64), self.space.sizes(scope))
        # Illegal combinations have no value (NaN). Relations exclude them; zero keeps every lower bound valid.
        return np.nan_to_num(np.array(filled), nan=0.0)

    def _rate_tables(self, field: str, unit: str) -> tuple[Table, ...]:
        rates = [[self.rates(o, code) for code in range(len(self.market.networks))] for o in self.market.servers]
        found = []
        for tier, name in enumerate(TIERS):
            values = np.array([[getattr(one, field)[tier] for one in row] for row in rates])
            # Without a network nothing crosses a server, so what that would take is never asked.
            values[~np.isfinite(values)] = 0.0
            scope = ("server",) if tier == 0 else ("server", "network")
            stated = formulas.PER_BYTE if field == "seconds_per_byte" else formulas.PER_MESSAGE
            found.append(
                Table(f"{field} at {name}", scope, values[:, 0].copy() if tier == 0 else values, unit, *stated)
            )
        return tuple(found)
