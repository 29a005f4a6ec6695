"""The cost model of an instance: objective, limits and step time as terms. Floor 3. In: an instance. Out: `CostModel`.

The same term objects are evaluated by numpy, bounded, and laid into the solvers' models. What they leave out (stages
played event by event) the exact model adds; a term is never above what the exact model computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from codesign.cost import formulas
from codesign.cost.market import Line, Market, ServerOption
from codesign.cost.memory import training_memory
from codesign.cost.space import DesignSpace, design_space
from codesign.cost.step import Step
from codesign.cost.tables import Tables
from codesign.design import DIMENSIONS, Design, Placement, Plan, Purchase
from codesign.expr import Columns, Monomial, Scale, Space, Sum, Table, Term, evaluate
from codesign.expr.term import largest, total
from codesign.spec.instance import Instance
from codesign.spec.workload import Model

Floats = npt.NDArray[np.float64]


def memory_stages(model: Model) -> tuple[int, ...]:
    """Stages among which the fullest is: those in the middle hold equal layers, the first of them most micro-batches.

    Dense layers in front of a mixture may take up the first stages, at least one layer each.
    """
    in_front = model.dense_layers if model.experts else 0
    return (*range(in_front + 2), -1)


MINIMISED = {
    "step_time": "step",
    "tokens_per_s": "step",
    "time_to_train": "time_to_train",
    "total_cost": "total_cost",
    "tokens_per_usd": "usd_per_token",
    # least use of a limit, which only the analysis of conflicts asks for
    "capex": "capex",
    "power": "power",
    "gpus": "gpus",
}
"""Objective -> the attribute of `CostModel` that is minimised for it."""


@dataclass(frozen=True)
class Limit:
    """A limit that a design must keep: `term <= most`. `path` is where the instance states it."""

    name: str
    term: Term
    most: float
    unit: str
    path: str


class CostModel:
    """All terms of one instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.market = Market(instance)
        self.design_space: DesignSpace = design_space(instance, self.market)
        self.space: Space = self.design_space.space
        self.workload = self.design_space.workload
        multiple = self.design_space.case.profile.vocabulary_multiple or 1
        proposed = {name: self.space[name].values for name in ("recompute", "shard_within", "context_exchange")}
        self.memory_model = training_memory(
            self.workload,
            instance.assumptions,
            multiple,
            blocks=any(kind.startswith("full:") for kind in proposed["recompute"]),
            within_domain="domain" in proposed["shard_within"],
            gathers_context="all-gather" in proposed["context_exchange"],
        )
        self.tables = Tables(self.design_space)
        self._step = Step(self.tables, self.memory_model)

    # -- time

    @cached_property
    def step(self) -> Term:
        """Seconds of a step: computing and communicating, or reading its data where storage is slower."""
        return largest("step", [self._step.total, self.reading], "s")

    @cached_property
    def reading(self) -> Monomial:
        """Seconds to read the data of a step from storage."""
        tokens = self.workload.global_batch * self.workload.sequence_length
        step_bytes = tokens * self.instance.assumptions.bytes_per_token

        def seconds(option: Any, storage: Any, counts: Any) -> Floats:
            return np.asarray(step_bytes / self.market.read_bytes_per_s(option, storage, counts))

        return Monomial(
            "reading the data of a step", 1.0, (self.tables.of_storage("reading", seconds, "s", formulas.READING),), "s"
        )

    @cached_property
    def overhead(self) -> Table:
        """Wall-clock seconds a second of work: checkpoints, failures, restarts, at the best interval to save."""
        intervals = np.asarray(self.space["checkpoint_interval"].values)

        def best(option: Any, storage: Any, counts: Any) -> Floats:
            values = self.market.overhead(option, storage, counts[:, None], intervals[None, :]).min(axis=1)
            return np.where(np.isfinite(values), values, 0.0)

        return self.tables.of_storage("overhead of checkpoints and failures", best, "", formulas.OVERHEAD)

    @property
    def steps(self) -> float:
        """Training steps for the stated tokens; NaN if none are stated."""
        if self.workload.tokens is None:
            return float("nan")
        return self.workload.tokens / (self.workload.global_batch * self.workload.sequence_length)

    @cached_property
    def time_to_train(self) -> Term:
        """Wall-clock seconds for all tokens."""
        return Scale("time to train", Monomial("steps", self.steps, (self.overhead,)), self.step, "s")

    # -- money and power

    @cached_property
    def capex(self) -> Sum:
        """Purchase price: servers with their network, and storage."""
        factor = 1.0 + self.instance.assumptions.installation_fraction

        def hardware(option: Any, network: Any, counts: Any) -> Floats:
            lines = (
                *self.market.server_lines(option, network, counts),
                *self.market.network_lines(option, network, counts),
            )
            return np.maximum(_usd(lines, counts), 0.0)

        def storage(option: Any, unit: Any, counts: Any) -> Floats:
            return _usd(self.market.storage_lines(unit, counts), counts)

        return total(
            "capex",
            [
                Monomial(
                    "servers and network",
                    factor,
                    (self.tables.of_hardware("servers and network", hardware, "USD", formulas.MONEY),),
                ),
                Monomial("storage", factor, (self.tables.of_storage("storage", storage, "USD", formulas.MONEY),)),
            ],
            "USD",
        )

    @cached_property
    def power(self) -> Sum:
        """Power of the site: servers, network and storage, times PUE."""

        def hardware(option: Any, network: Any, counts: Any) -> Floats:
            lines = (
                *self.market.server_lines(option, network, counts),
                *self.market.network_lines(option, network, counts),
            )
            return _watts(lines, counts)

        def storage(option: Any, unit: Any, counts: Any) -> Floats:
            return _watts(self.market.storage_lines(unit, counts), counts)

        pue = self.instance.assumptions.pue
        return total(
            "power",
            [
                Monomial(
                    "servers and network",
                    pue,
                    (self.tables.of_hardware("watts of servers and network", hardware, "W", formulas.WATTS),),
                ),
                Monomial("storage", pue, (self.tables.of_storage("watts of storage", storage, "W", formulas.WATTS),)),
            ],
            "W",
        )

    @cached_property
    def gpus(self) -> Monomial:
        """GPUs of the servers, working or idle."""
        each = self.tables.of_server("GPUs of a server", (), _gpus)
        servers = self.tables.of_plan("servers", ("servers",), _same)
        return Monomial("GPUs", 1.0, (each, servers), "GPUs")

    def _times(self, name: str, costs: Sum, scale: float, term: Term) -> list[Term]:
        """(scale x costs) x term, term by term: a product of sums of monomials is a sum of products."""
        return [
            Scale(f"{name}: {cost.name}", Monomial(cost.name, scale * cost.coefficient, cost.factors), term)
            for cost in costs.terms
            if isinstance(cost, Monomial)
        ]

    @cached_property
    def total_cost(self) -> Term:
        """Purchase price and the energy of the run."""
        energy = self.instance.assumptions.electricity_usd_per_joule
        return total(
            "total cost", [*self.capex.terms, *self._times("energy", self.power, energy, self.time_to_train)], "USD"
        )

    @cached_property
    def usd_per_token(self) -> Term:
        """Money a token: purchase price written off evenly, and energy, for each second of the run."""
        constants = self.instance.assumptions
        second = Scale(
            "seconds a token",
            Monomial("1/tokens", 1.0 / (self.workload.global_batch * self.workload.sequence_length), (self.overhead,)),
            self.step,
        )
        return total(
            "cost of a token",
            [
                *self._times("written off", self.capex, 1.0 / constants.depreciation_s, second),
                *self._times("energy", self.power, constants.electricity_usd_per_joule, second),
            ],
            "USD",
        )

    @cached_property
    def objective(self) -> Term:
        """What is minimised. Rates (tokens/s, tokens/USD) are maximised by minimising their inverse: `to_user`."""
        term: Term = getattr(self, MINIMISED[self.instance.objective])
        return term

    @cached_property
    def fixed_cost(self) -> Term:
        """The part of the objective that does not grow with the step time; the rest is proportional to it."""
        fixed = {"total_cost": "capex", "capex": "capex", "power": "power", "gpus": "gpus"}
        name = fixed.get(self.instance.objective)
        return Sum("nothing", ()) if name is None else getattr(self, name)

    def to_user(self, value: float) -> float:
        """The objective as the user named it, from the minimised value."""
        if self.instance.objective == "tokens_per_s":
            return self.workload.global_batch * self.workload.sequence_length / value
        if self.instance.objective == "tokens_per_usd":
            return 1.0 / value
        return value

    @property
    def unit(self) -> str:
        """Unit of the objective as the user named it."""
        return {
            "step_time": "s",
            "time_to_train": "s",
            "tokens_per_s": "tokens/s",
            "total_cost": "USD",
            "tokens_per_usd": "tokens/USD",
            "capex": "USD",
            "power": "W",
            "gpus": "GPUs",
        }[self.instance.objective]

    # -- limits

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The stated limits, each with its term."""
        stated = self.instance.limits
        found = []
        if stated.capex_usd is not None:
            found.append(Limit("capex", self.capex, stated.capex_usd, "USD", "limits.capex"))
        if stated.power_w is not None:
            found.append(Limit("power", self.power, stated.power_w, "W", "limits.power"))
        if stated.deadline_s is not None:
            found.append(Limit("deadline", self.time_to_train, stated.deadline_s, "s", "limits.deadline"))
        return tuple(found)

    @cached_property
    def memory(self) -> tuple[Sum, ...]:
        """Bytes on a rank of the stages that can be fullest, as shares of the GPU's memory: each must be at most 1."""
        capacity = self.tables.of_server("1/memory", (), lambda o: 1.0 / o.server.gpu.memory_bytes)
        found = []
        for stage in memory_stages(self.workload.model):
            terms = []
            for part in self.memory_model.parts(stage):
                factors = tuple(
                    self.tables.of_plan(f"{part.name} {i}", factor.decisions, _by_name(factor), "", formulas.MEMORY)
                    for i, factor in enumerate(part.factors)
                )
                terms.append(Monomial(part.name, part.coefficient, (*factors, capacity)))
            found.append(total(f"memory of stage {stage}", terms))
        return tuple(found)

    # -- designs

    def decode(self, columns: Columns, row: int = 0) -> Design:
        """The design in one row of codes of all decisions."""
        values = self.space.decode(columns, row)
        network, _ = values["network"]
        storage, _ = values["storage"]
        return Design(
            workload=self.workload.name,
            plan=Plan(**{name: values[name] for name in Plan.__dataclass_fields__}),
            placement=Placement(**{d: values[f"{d}_layout"] for d in DIMENSIONS}),
            purchase=Purchase(
                server=values["server"],
                servers=values["servers"],
                network=network,
                storage=storage,
                checkpoint_interval_s=values["checkpoint_interval"],
            ),
        )

    def value(self, term: Term, columns: Columns) -> Floats:
        """A term for each row."""
        return evaluate(term, columns)


def _gpus(option: ServerOption) -> int:
    return option.server.gpus


def _same(values: Any) -> Any:
    return values


def _by_name(factor: Any) -> Any:
    """A memory factor as a function of positional arrays, in the order of its decisions."""
    return lambda *arrays: factor.value(**dict(zip(factor.decisions, arrays, strict=True)))


def _usd(lines: tuple[Line, ...], counts: npt.NDArray[np.int64]) -> Floats:
    return np.asarray(sum((line.count * line.unit_usd for line in lines), np.zeros(len(counts))))


def _watts(lines: tuple[Line, ...], counts: npt.NDArray[np.int64]) -> Floats:
    return np.asarray(sum((line.count * line.unit_w for line in lines), np.zeros(len(counts))))
