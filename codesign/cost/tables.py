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

from codesign.cost import collectives, legality
from codesign.cost.market import Market, ServerOption
from codesign.cost.space import DesignSpace
from codesign.design import TIERS
from codesign.expr import Space, Table

Formula = Callable[..., Any]


class Tables:
    """Makes tables for one design space."""

    def __init__(self, design_space: DesignSpace) -> None:
        self.design_space = design_space
        self.space: Space = design_space.space
        self.market: Market = design_space.market
        self.workload = design_space.workload
        self.assumptions = design_space.instance.assumptions

    def of_plan(self, name: str, scope: Sequence[str], value: Formula, unit: str = "") -> Table:
        """Table over decisions of the plan; `value(*arrays)` gets the decisions' values."""
        return Table(name, tuple(scope), self._filled(scope, value), unit)

    def of_server(self, name: str, scope: Sequence[str], value: Formula, unit: str = "") -> Table:
        """Table over the server type and decisions of the plan; `value(option, *arrays)`."""
        slices = [self._filled(scope, lambda *arrays, o=option: value(o, *arrays)) for option in self.market.servers]
        return Table(name, ("server", *scope), np.stack(slices), unit)

    def of_schedule(self, name: str, value: Formula, unit: str = "") -> Table:
        """Table over the shape of the pipeline; `value(pp, virtual_stages, micro_batches)`, arrays of one shape."""
        batch = self.workload.global_batch

        def filled(p: Any, v: Any, d: Any, b: Any) -> Any:
            m = np.maximum(1, legality.micro_batches(batch, d, b))
            return value(*np.broadcast_arrays(p, v, m))

        return self.of_plan(name, ("pp", "virtual_stages", "dp", "micro_batch"), filled, unit)

    def of_layout(
        self, name: str, dimensions: tuple[str, ...], value: Callable[[Sequence[int]], Sequence[float]]
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
            Table(f"{name}, {tier}", scope, np.ascontiguousarray(values[..., i])) for i, tier in enumerate(TIERS)
        )

    @cached_property
    def seconds_per_byte(self) -> tuple[Table, ...]:
        """What a byte costs a rank at each tier."""
        return self._rate_tables("seconds_per_byte", "s/byte")

    @cached_property
    def latency_s(self) -> tuple[Table, ...]:
        """What a message costs at each tier."""
        return self._rate_tables("latency_s", "s")

    def of_storage(self, name: str, value: Formula, unit: str = "") -> Table:
        """Table over server, servers, storage; `value(server option, storage option, counts)`."""
        counts = np.asarray(self.space["servers"].values, dtype=np.int64)
        values = np.array([[value(o, s, counts) for s in self.market.storages] for o in self.market.servers])
        return Table(name, ("server", "servers", "storage"), np.swapaxes(values, 1, 2).copy(), unit)

    def of_hardware(self, name: str, value: Formula, unit: str = "") -> Table:
        """Table over server, servers, network; `value(server option, network option, counts)`."""
        counts = np.asarray(self.space["servers"].values, dtype=np.int64)
        values = np.array([[value(o, n, counts) for n in self.market.networks] for o in self.market.servers])
        return Table(name, ("server", "servers", "network"), np.swapaxes(values, 1, 2).copy(), unit)

    def rates(self, option: ServerOption, network_code: int) -> collectives.TierRates:
        """Rates of a server on a network."""
        network = self.market.networks[network_code]
        return self.market.rates(option, network)

    def _filled(self, scope: Sequence[str], value: Formula) -> npt.NDArray[np.float64]:
        arrays = []
        for axis, decision in enumerate(scope):
            shape = [1] * len(scope)
            shape[axis] = self.space.size(decision)
            arrays.append(np.asarray(self.space[decision].values).reshape(shape))
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
            found.append(Table(f"{field} at {name}", scope, values[:, 0].copy() if tier == 0 else values, unit))
        return tuple(found)
