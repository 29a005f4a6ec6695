"""Communication terms: gathers, rings and stage transfers over the tiers. Floor 3. In: tables. Out: terms in seconds.

The formulas are those of `collectives`, written here as monomials: message bytes x share of a tier x seconds a byte,
and messages x latency, one pair a tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from codesign.cost import architecture, collectives, formulas
from codesign.cost.architecture import Kind
from codesign.cost.formulas import Formula
from codesign.cost.tables import Tables
from codesign.design import TIERS
from codesign.expr import Monomial, Sum, Table
from codesign.expr.term import total
from codesign.spec.workload import Workload

TRANSFER_BYTES = 2.0
"""Activations and their gradients cross the network in 16 bit."""


def activation_message_bytes(workload: Workload) -> float:
    """Activations of one sequence: s h elements in 16 bit; times b/c for a rank's micro-batch."""
    return TRANSFER_BYTES * workload.sequence_length * workload.model.hidden


def ring_message_bytes(workload: Workload) -> float:
    """Keys and values of one sequence, 2 s g d_h elements in 16 bit; times b/(c t) for a rank's share."""
    model = workload.model
    return TRANSFER_BYTES * 2.0 * workload.sequence_length * model.kv_heads * model.head_size


def ring_hops(layout: Sequence[int]) -> tuple[int, ...]:
    """Hops around a ring, counted at each tier that the ring spans: the slowest of these tiers sets the pace."""
    degree = int(np.prod(layout))
    return tuple((degree - 1) * (factor > 1) for factor in layout)


def boundary_shares(layout: Sequence[int]) -> tuple[float, ...]:
    """Share of the boundaries between neighbouring stages that cross each tier."""
    degree = int(np.prod(layout))
    return tuple(count / max(1, degree - 1) for count in collectives.boundaries(layout))


SHARDING = ("dp", "cp")
"""Dimensions whose ranks share what ZeRO shards."""

OfGroup = Callable[[str, Callable[[Sequence[Any]], Sequence[Any]], Formula], tuple[Table, ...]]
"""Tables by tier of a value of the layout of some group: name, value, formula."""


class Communication:
    """The communication terms of one design space."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def gather(
        self, name: str, message: Monomial, dimensions: tuple[str, ...], times: Sequence[tuple[Table, ...]] = ((),) * 3
    ) -> Sum:
        """`collectives.gather_s` of a message in bytes, over the group of one or two dimensions.

        `times` has factors by tier: how often the message crosses it.
        """
        shares = self._tables.of_layout(
            f"share of message, {'x'.join(dimensions)}", dimensions, collectives.gather_shares, formulas.GATHER_SHARE
        )
        steps = self._tables.of_layout(
            f"messages, {'x'.join(dimensions)}", dimensions, collectives.gather_steps, formulas.GATHER_STEPS
        )
        return self._over_tiers(name, message, shares, steps, times)

    def sharded_gather(self, name: str, message: Monomial, *, gradients: bool) -> Sum:
        """Gather of weights, or reduction of gradients, over the ranks that a state is sharded over.

        Within the domain weights cross no other tier; gradients are reduced there and all-reduced beyond, which is two
        of these collectives. See `collectives.within_domain_s`.
        """
        if not self._tables.has("shard_within", "domain"):
            return self.gather(name, message, SHARDING)
        if gradients and self._tables.reduces((1, 2)):
            group, domain = (self._tables.where("shard_within", each) for each in ("group", "domain"))
            inside = self.gather(name, message, SHARDING, ((), (group,), (group,)))
            beyond_it = self._all_reduced(name, message, self._over_sharding, (None, (domain,), (domain,)))
            return total(name, [*inside.terms, *beyond_it], "s")
        beyond = self._tables.of_plan(
            f"times beyond the domain, {'gradients' if gradients else 'weights'}",
            ("shard_within",),
            lambda within: np.where(within == "domain", 2.0 * gradients, 1.0),
            "",
            formulas.WITHIN_DOMAIN,
        )
        return self.gather(name, message, SHARDING, ((), (beyond,), (beyond,)))

    def all_reduce(self, name: str, message: Monomial) -> list[Monomial]:
        """`collectives.all_reduce_s` of a message in bytes over the ranks that hold the same parameters."""
        return self._all_reduced(name, message, self._over_sharding)

    def expert_all_reduce(self, name: str, message: Monomial) -> list[Monomial]:
        """`collectives.all_reduce_s` of a message in bytes over the ranks that hold the same experts."""

        def of_group(table: str, value: Callable[[Sequence[Any]], Sequence[Any]], stated: Formula) -> tuple[Table, ...]:
            return self._tables.of_expert_groups(f"{table}, experts", "outer", value, stated)

        return self._all_reduced(name, message, of_group)

    def _over_sharding(
        self, name: str, value: Callable[[Sequence[Any]], Sequence[Any]], stated: Formula
    ) -> tuple[Table, ...]:
        return self._tables.of_layout(f"{name}, {'x'.join(SHARDING)}", SHARDING, value, stated)

    def _all_reduced(
        self,
        name: str,
        message: Monomial,
        of_group: OfGroup,
        times: Sequence[tuple[Table, ...] | None] = ((),) * 3,
        count: float = 1.0,
    ) -> list[Monomial]:
        """All-reduces over a group, by what switches reach; `times` as of `gather`, None for tiers to leave out."""
        terms: list[Monomial] = []
        for tier, label in enumerate(TIERS):
            often = times[tier]
            for reached, chosen in self._tables.reducing[tier] if often is not None else ():
                in_switch = tuple(reached * (each == tier) for each in range(len(TIERS)))
                share, steps = (
                    of_group(f"{table} where switches reach {reached:g}", partial(value, in_switch=in_switch), stated)
                    for table, value, stated in (
                        ("share of message, all-reduce", collectives.all_reduce_shares, formulas.ALL_REDUCE_SHARE),
                        ("messages, all-reduce", collectives.all_reduce_steps, formulas.ALL_REDUCE_STEPS),
                    )
                )
                factors = (*chosen, *(often or ()))
                each = self._at_tier(f"{name}, all-reduce, {label}", message, share[tier], steps[tier], tier, factors)
                terms += [Monomial(one.name, count * one.coefficient, one.factors, one.unit) for one in each]
        return terms

    @cached_property
    def context_gather(self) -> Sum:
        """All-gather of a micro-batch's keys and values over the context-parallel group, where that is chosen."""
        share = self._tables.of_plan("b/t", ("tp", "micro_batch"), lambda t, b: b / t, "", formulas.TOKENS_SHARE)
        message = Monomial("keys and values", ring_message_bytes(self._tables.workload), (share,), "byte")
        chosen = (self._tables.where("context_exchange", "all-gather"),)
        return self.gather("gather of keys and values", message, ("cp",), (chosen,) * 3)

    @cached_property
    def tensor_gather(self) -> Sum:
        """All-gather or reduce-scatter of a micro-batch's activations over the tensor-parallel group.

        Without sequence parallelism half an all-reduce, which switches may do.
        """
        share = self._tables.of_plan("b/c", ("cp", "micro_batch"), lambda c, b: b / c, "", formulas.TOKENS_SHARE)
        message = Monomial("activations", activation_message_bytes(self._tables.workload), (share,), "byte")
        if self._tables.workload.sequence_parallel or not self._tables.reduces((0, 1, 2)):
            return self._launched("tensor-parallel", "tp", self.gather("tensor-parallel gather", message, ("tp",)))

        def of_group(table: str, value: Callable[[Sequence[Any]], Sequence[Any]], stated: Formula) -> tuple[Table, ...]:
            return self._tables.of_layout(f"{table}, tp", ("tp",), value, stated)

        half = self._all_reduced("tensor-parallel half", message, of_group, count=0.5)
        return self._launched("tensor-parallel", "tp", total("tensor-parallel half of an all-reduce", half, "s"))

    @cached_property
    def exchange(self) -> Sum:
        """`collectives.exchange_s` of a micro-batch's tokens over the expert-parallel group."""
        share = self._tables.of_plan(
            "b/(c t)", ("tp", "cp", "micro_batch"), lambda t, c, b: b / (c * t), "", formulas.TOKENS_SHARE
        )
        workload = self._tables.workload
        size = self._tables.assumptions.expert_imbalance * activation_message_bytes(workload)
        message = Monomial("routed tokens", size, (share,), "byte")
        shares = self._tables.of_expert_groups(
            "copies of a token",
            "inner",
            lambda layout: collectives.exchange_copies(layout, workload.model.top_k),
            formulas.COPIES,
        )
        steps = self._tables.of_expert_groups(
            "messages to experts", "inner", collectives.gather_steps, formulas.GATHER_STEPS
        )
        found = self._launched(
            "expert-parallel", "ep", self._over_tiers("expert-parallel exchange", message, shares, steps)
        )
        if self._tables.space["expert_tp"].values == (1,):
            return found
        copies = self._tables.of_plan(
            "copies of the tokens of a group that shares experts",
            ("expert_tp",),
            lambda x: workload.model.top_k * x,
            "",
            formulas.COPIES,
        )
        gathered = Monomial(message.name, message.coefficient, (*message.factors, copies), "byte")
        shares, steps = (
            self._tables.of_expert_groups(name, "cut", value, stated)
            for name, value, stated in (
                ("share of message, shared experts", collectives.gather_shares, formulas.GATHER_SHARE),
                ("messages, shared experts", collectives.gather_steps, formulas.GATHER_STEPS),
            )
        )
        gather = self._over_tiers("gather of routed tokens", gathered, shares, steps)
        gather = self._launched("expert tensor-parallel", "expert_tp", gather)
        return total(found.name, [*found.terms, *gather.terms], "s")

    def expert_gather(self, name: str, message: Monomial) -> Sum:
        """`collectives.gather_s` of a message in bytes over the ranks that hold the same experts."""
        shares = self._tables.of_expert_groups(
            "share of message, experts", "outer", collectives.gather_shares, formulas.GATHER_SHARE
        )
        steps = self._tables.of_expert_groups(
            "messages, experts", "outer", collectives.gather_steps, formulas.GATHER_STEPS
        )
        return self._over_tiers(name, message, shares, steps)

    def _launched(self, name: str, dimension: str, collective: Sum) -> Sum:
        """A collective with the time that it takes to start, where its group has more than one rank."""
        launch_s = self._tables.assumptions.collective_launch_s
        if not launch_s:
            return collective
        several = self._tables.of_plan(f"several {dimension}", (dimension,), lambda n: n > 1, "", formulas.SEVERAL)
        return total(collective.name, [*collective.terms, Monomial(f"{name} launch", launch_s, (several,), "s")], "s")

    @cached_property
    def ring(self) -> tuple[Sum, ...]:
        """`collectives.ring_s` of keys and values, were each tier the slowest; their maximum is the ring's time."""
        share = self._tables.of_plan(
            "b/(c t)", ("tp", "cp", "micro_batch"), lambda t, c, b: b / (c * t), "", formulas.TOKENS_SHARE
        )
        message = Monomial("keys and values", ring_message_bytes(self._tables.workload), (share,), "byte")
        hops = self._tables.of_layout("ring hops", ("cp",), ring_hops, formulas.RING_HOPS)
        gathers = self._tables.has("context_exchange", "all-gather")
        chosen = (self._tables.where("context_exchange", "ring"),) if gathers else ()
        return tuple(
            total(
                f"ring paced by {label}", self._at_tier(f"ring at {label}", message, hops[i], hops[i], i, chosen), "s"
            )
            for i, label in enumerate(TIERS)
        )

    @cached_property
    def transfer(self) -> Sum:
        """Transfer of a micro-batch's activations between neighbouring stages, mean over the boundaries."""
        share = self._tables.of_plan(
            "b/(c t)", ("tp", "cp", "micro_batch"), lambda t, c, b: b / (c * t), "", formulas.TOKENS_SHARE
        )
        message = Monomial("boundary", activation_message_bytes(self._tables.workload), (share,), "byte")
        crossing = self._tables.of_layout("share of boundaries", ("pp",), boundary_shares, formulas.BOUNDARIES)
        return self._over_tiers("stage transfer", message, crossing, crossing)

    def layer_parameters(self, kind: Kind) -> Table:
        """Parameters of one layer on a rank before sharding, routed experts apart."""
        model = self._tables.workload.model
        return self._tables.of_plan(
            f"parameters of a {kind} layer",
            ("tp",),
            lambda t: architecture.local_layer_parameters(model, t, kind),
            "",
            formulas.PARAMETERS,
        )

    def layer_expert_parameters(self, kind: Kind) -> tuple[Table, ...]:
        """Factors of the parameters of the routed experts of one layer on a rank; none for a dense layer."""
        if kind == "dense":
            return ()
        model = self._tables.workload.model
        whole = model.experts * architecture.expert_parameters(model)
        return (
            self._tables.of_plan(
                "experts of a layer", ("ep", "expert_tp"), lambda e, x: whole / (e * x), "", formulas.PARAMETERS
            ),
        )

    def _over_tiers(
        self,
        name: str,
        message: Monomial,
        shares: tuple[Table, ...],
        steps: tuple[Table, ...],
        times: Sequence[tuple[Table, ...]] = ((),) * 3,
    ) -> Sum:
        terms: list[Monomial] = []
        for tier, label in enumerate(TIERS):
            terms += self._at_tier(f"{name}, {label}", message, shares[tier], steps[tier], tier, times[tier])
        return total(name, terms, "s")

    def _at_tier(
        self, name: str, message: Monomial, share: Table, steps: Table, tier: int, times: tuple[Table, ...] = ()
    ) -> list[Monomial]:
        per_byte, latency = self._tables.seconds_per_byte[tier], self._tables.latency_s[tier]
        return [
            Monomial(f"{name} bandwidth", message.coefficient, (*message.factors, share, per_byte, *times), "s"),
            Monomial(f"{name} latency", 1.0, (steps, latency, *times), "s"),
        ]
