"""The step time as one term. Floor 3. In: tables. Out: the terms of a layer, of the pipeline and of the whole step.

A layer is computed and communicates; stages of layers make a pipeline, of which every chain of dependent operations is
a lower bound; data-parallel traffic hides under part of the first forward and the last backward:

    step = overhead + max(chains) - window (F + B) + max(window F, gather) + max(window B, reduction) + optimizer

with F, B the forward and backward of one micro-batch on the first stage. The subtraction is made on the coefficients of
the chains, so that every term stays non-negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from codesign.cost import chains, compute, formulas, recompute
from codesign.cost.architecture import Kind, kinds
from codesign.cost.communication import SHARDING, Communication
from codesign.cost.formulas import Formula
from codesign.cost.memory import TrainingMemory
from codesign.cost.tables import Filling, Tables
from codesign.expr import Monomial, Scale, Sum, Table, Term
from codesign.expr.term import largest, total

GATHERS_A_PASS = 4.0
"""All-gathers and reduce-scatters of a layer in one pass: two each, around attention and around the feed-forward
(Korthikanti et al. 2022, section 4.2.2). The backward has as many; its further gather hides under the weight gradient.
"""

EXCHANGES_A_PASS = 2.0
"""All-to-alls of a mixture in one pass: tokens go to their experts, results come back."""

GATHERS_AGAIN = {"full": 1.0, "mlp": 0.5}
"""More passes of the gathers in the backward: all of a layer's, or the two of its feed-forward."""

EXCHANGES_AGAIN = {"full": 1.0, "mlp": 1.0}
"""More passes of the all-to-alls in the backward: experts are part of the feed-forward."""

HOST_AGAIN = {"full": 1.0, "mlp": 0.5}
"""More passes that the host issues: a feed-forward is taken as half a layer."""

RING_BACKWARD_TO_FORWARD = 2.0
"""The ring passes keys and values and their gradients in the backward: twice the bytes of the forward."""


class Step:
    """Terms of the step time of one design space."""

    def __init__(self, tables: Tables, memory: TrainingMemory) -> None:
        self._tables = tables
        self._memory = memory
        self._constants = tables.assumptions
        self._workload = tables.workload
        self.kinds: tuple[Kind, ...] = kinds(self._workload.model)
        self.communication = Communication(tables)
        self.layer_forward = cache(self._layer_forward)
        self.layer_backward = cache(self._layer_backward)
        self._dense = cache(lambda kind: self._layer_table("matrices and elementwise", kind))
        self._core = cache(lambda kind: self._layer_table("attention core", kind))
        self._feed_forward = cache(lambda kind: self._layer_table("feed-forward", kind))
        counts = recompute.whole_layers(tables.space["recompute"].values)
        self._blocks = bool(np.any((counts > 0) & (counts < recompute.EVERY_LAYER)))

    # -- tables of the layer

    def _passes(self, option: Any, kind: Kind, t: Any, c: Any, b: Any, e: Any = 1, x: Any = 1) -> compute.LayerSeconds:
        workload = self._workload
        return compute.layer_forward(
            workload.model,
            workload.sequence_length,
            b,
            t,
            c,
            compute.with_software(option.server.gpu, self._constants),
            workload.precision,
            kind=kind,
            ep=e,
            expert_tp=x,
            imbalance=self._constants.expert_imbalance,
            attention=workload.attention,
            sequence_parallel=workload.sequence_parallel,
        )

    def _layer_table(self, part: str, kind: Kind) -> Table:
        def value(option: Any, *degrees: Any) -> Any:
            seconds = self._passes(option, kind, *degrees)
            if part == "feed-forward":
                return seconds.feed_forward_s
            return seconds.attention_s if part == "attention core" else seconds.total_s - seconds.attention_s

        stated = formulas.ATTENTION if part == "attention core" else formulas.MATRICES
        of_experts = kind == "mixture" and part != "attention core"
        scope = ("tp", "cp", "micro_batch", *(("ep", "expert_tp") if of_experts else ()))
        return self._tables.of_server(f"{part} of a {kind} layer", scope, value, "s", stated)

    def _dense_backward(self, kind: Kind, inputs_only: bool) -> Table:
        """Backward of all but the attention core; with frozen weights the matrices count once."""

        def value(option: Any, *degrees: Any) -> Any:
            forward = self._passes(option, kind, *degrees)
            backward = compute.layer_backward(forward, self._workload.attention, self._workload.tuning)
            whole = backward.total_s - backward.attention_s
            return whole - compute.weight_gradients_s(forward, self._workload.tuning) if inputs_only else whole

        scope = ("tp", "cp", "micro_batch", *(("ep", "expert_tp") if kind == "mixture" else ()))
        part = "matrices (gradients of inputs)" if inputs_only else "matrices"
        return self._tables.of_server(
            f"backward of {part} and elementwise of a {kind} layer", scope, value, "s", formulas.MATRICES
        )

    def _again(self, base: float, more: Mapping[str, float], whole: bool) -> Table:
        """`base` passes, and `more` where a kind of recomputation runs it again; of a `whole` layer as under `full`."""
        told = ", ".join(f"{kind} {count:g} more" for kind, count in more.items())

        def passes(kinds: Any) -> Any:
            of_layer = np.full(kinds.shape, "full") if whole else recompute.of_other_layers(kinds)
            return base + sum(count * (of_layer == kind) for kind, count in more.items())

        return self._tables.of_plan(
            f"{base:g} passes and recomputation ({told})" + " of a whole layer" * whole,
            ("recompute",),
            passes,
            "",
            formulas.PASSES,
        )

    def _zero(self, name: str, levels: tuple[int, ...]) -> Monomial:
        return Monomial(
            name, 1.0, (self._tables.of_plan(name, ("zero",), lambda z: np.isin(z, levels), "", formulas.SHARDED),)
        )

    # -- one layer, one micro-batch

    def _gathers(self, name: str, passes: tuple[Table, ...]) -> Term:
        """Exposed gathers of tensor parallelism."""
        gathers = GATHERS_A_PASS * (1.0 - self._constants.overlap_tensor_parallel)
        by = Monomial("gathers", gathers, passes)
        return Scale(f"tensor-parallel, {name}", by, self.communication.tensor_gather, "s")

    def _with_exchanges(self, kind: Kind, name: str, inner: list[Term], passes: tuple[Table, ...]) -> Term:
        """A pass with the all-to-alls of its experts; no more of them can hide than there is work to hide them."""
        if kind != "mixture":
            return total(f"layer {name}", inner, "s")
        exposed = 1.0 - self._constants.overlap_expert_parallel

        def exchanges(share: float) -> Term:
            by = Monomial("exchanges", EXCHANGES_A_PASS * share, passes)
            return Scale(f"expert-parallel, {name}", by, self.communication.exchange, "s")

        partly = total(f"layer {name}", [*inner, exchanges(exposed)], "s")
        return partly if exposed == 1.0 else largest(f"layer {name} beside exchanges", [partly, exchanges(1.0)], "s")

    def _layer_forward(self, kind: Kind) -> Term:
        """Forward of one layer for one micro-batch: matrices and elementwise, attention beside its ring, traffic."""
        attention = largest(
            "attention and ring, forward",
            [Monomial("attention core, forward", 1.0, (self._core(kind),), "s"), *self.communication.ring],
            "s",
        )
        matrices = Monomial("matrices, forward", 1.0, (self._dense(kind),), "s")
        inner: list[Term] = [matrices, attention, self._gathers("forward", ()), *self._context_gather("forward", ())]
        own = self._with_exchanges(kind, "forward", inner, ())
        gather = Scale("weights of a layer", self._zero("ZeRO 3", (3,)), self._layer_weights(kind), "s")
        beside: list[Term] = [own, gather]
        beside += self._host("forward", kind, ())
        return largest("layer forward beside its weights", beside, "s")

    def _layer_backward(self, kind: Kind, whole: bool = False, inputs_only: bool = False) -> Term:
        """Backward of one layer for one micro-batch, with what is recomputed.

        `whole`: of one of the N layers that `full:N` runs again. `inputs_only`: without the gradients of weights, which
        ZB-H1 puts off.
        """
        core_again = dict.fromkeys(("full", "selective"), 1.0)
        ring_times = self._again(RING_BACKWARD_TO_FORWARD, core_again, whole)
        ring_passes = Monomial("ring passes", 1.0, (ring_times,))
        backward_passes = compute.ATTENTION_BACKWARD_TO_FORWARD[self._workload.attention]
        core_passes = self._again(backward_passes, core_again, whole)
        attention = largest(
            "attention and ring, backward",
            [
                Monomial("attention core, backward", 1.0, (self._core(kind), core_passes), "s"),
                *(Scale(f"{ring.name}, backward", ring_passes, ring, "s") for ring in self.communication.ring),
            ],
            "s",
        )
        inner: list[Term] = [
            Monomial("matrices, backward", 1.0, (self._dense_backward(kind, inputs_only),), "s"),
            Monomial("matrices, again", 1.0, (self._dense(kind), self._again(0.0, {"full": 1.0}, whole)), "s"),
            attention,
            self._gathers("backward", (self._again(1.0, GATHERS_AGAIN, whole),)),
            *self._context_gather("backward", (ring_times,)),
        ]
        if self._tables.has("recompute", "mlp"):
            again = self._again(0.0, {"mlp": 1.0}, whole)
            inner.append(Monomial("feed-forward, again", 1.0, (self._feed_forward(kind), again), "s"))
        own = self._with_exchanges(kind, "backward", inner, (self._again(1.0, EXCHANGES_AGAIN, whole),))
        if inputs_only:
            return own  # a pipeline, so nothing is sharded layer by layer
        sharding: list[Term] = [
            Scale("weights of a layer", self._zero("ZeRO 3", (3,)), self._layer_weights(kind), "s"),
        ]
        if self._workload.tuning == "full":
            by = self._zero("ZeRO 2 and 3", (2, 3))
            sharding.append(Scale("gradients of a layer", by, self._layer_gradients(kind), "s"))
        beside: list[Term] = [own, total("weights and gradients of a layer", sharding, "s")]
        beside += self._host("backward", kind, (self._again(compute.BACKWARD_TO_FORWARD, HOST_AGAIN, whole),))
        return largest("layer backward beside weights and gradients", beside, "s")

    def _context_gather(self, name: str, passes: tuple[Table, ...]) -> list[Term]:
        """Exposed gathers of keys and values, where a plan may choose them instead of the ring."""
        if not self._tables.has("context_exchange", "all-gather"):
            return []
        by = Monomial("gathers of keys and values", 1.0, passes)
        return [Scale(f"gather of keys and values, {name}", by, self.communication.context_gather, "s")]

    def _host(self, name: str, kind: Kind, passes: tuple[Table, ...]) -> list[Term]:
        """Time that the host takes to issue a pass, where it is counted at all."""
        table = self._tables.of_plan(
            f"host, forward of a {kind} layer",
            ("tp",),
            lambda t: compute.host_forward_s(self._constants, kind, t),
            "s",
            formulas.HOST,
        )
        return [Monomial(f"host, {name}", 1.0, (table, *passes), "s")] if np.any(table.values) else []

    def _layer_weights(self, kind: Kind) -> Sum:
        return self._layer_sharding("weights", self._constants.weight_bytes, kind, gradients=False)

    def _layer_gradients(self, kind: Kind) -> Sum:
        return self._layer_sharding("gradients", self._constants.reduced_gradient_bytes, kind, gradients=True)

    def _layer_sharding(self, name: str, element_bytes: float, kind: Kind, *, gradients: bool) -> Sum:
        each = element_bytes / self._constants.sharding_efficiency
        shared, own = self.communication.layer_parameters(kind), self.communication.layer_expert_parameters(kind)
        return self._sharded(f"{name} of a {kind} layer", each, shared, own, gradients=gradients)

    def _sharded(
        self, name: str, element_bytes: float, shared: Table, own: tuple[Table, ...], *, gradients: bool
    ) -> Sum:
        """Gather or reduction over the groups that share the same parameters: data and context parallel ranks.

        `own` are the factors of the parameters of routed experts, which have their own groups; none for dense layers.
        """
        message = Monomial(name, element_bytes, (shared,), "byte")
        terms = list(self.communication.sharded_gather(name, message, gradients=gradients).terms)
        if own:
            experts = Monomial(f"{name}, experts", element_bytes, own, "byte")
            terms += self.communication.expert_gather(f"{name}, experts", experts).terms
        return total(name, terms, "s")

    # -- ends of the pipeline

    def _end(self, name: str, scope: tuple[str, ...], value: Filling, stated: Formula) -> Monomial:
        return Monomial(name, 1.0, (self._tables.of_server(name, scope, value, "s", stated),), "s")

    @cached_property
    def head(self) -> tuple[Monomial, Monomial]:
        """Forward and backward of output matrix and loss for one micro-batch."""
        w, multiple = self._workload, self._memory.vocabulary_multiple
        scope = ("tp", "cp", "micro_batch")

        def forward(option: Any, tp: Any, cp: Any, micro_batch: Any) -> Any:
            gpu = compute.with_software(option.server.gpu, self._constants)
            return compute.head_forward(w.model, w.sequence_length, micro_batch, tp, cp, gpu, multiple).total_s

        def backward(option: Any, tp: Any, cp: Any, micro_batch: Any) -> Any:
            gpu = compute.with_software(option.server.gpu, self._constants)
            return compute.head_backward(w.model, w.sequence_length, micro_batch, tp, cp, gpu, multiple).total_s

        return (
            self._end("head, forward", scope, forward, formulas.HEAD),
            self._end("head, backward", scope, backward, formulas.HEAD),
        )

    @cached_property
    def embedding(self) -> tuple[Monomial, Monomial]:
        """Forward and backward of the embedding for one micro-batch."""
        w = self._workload
        scope = ("cp", "micro_batch")

        def passing(option: Any, cp: Any, micro_batch: Any) -> compute.LayerSeconds:
            gpu = compute.with_software(option.server.gpu, self._constants)
            return compute.embedding_forward(w.model, w.sequence_length, micro_batch, cp, gpu)

        def forward(option: Any, cp: Any, micro_batch: Any) -> Any:
            return passing(option, cp, micro_batch).total_s

        def backward(option: Any, cp: Any, micro_batch: Any) -> Any:
            return compute.embedding_backward(passing(option, cp, micro_batch)).total_s

        stated = formulas.EMBEDDING
        return (
            self._end("embedding, forward", scope, forward, stated),
            self._end("embedding, backward", scope, backward, stated),
        )

    # -- the pipeline

    @cached_property
    def pipeline(self) -> Term:
        """Largest of the chains, less the window under which data-parallel traffic may hide."""
        model, window = self._workload.model, self._constants.overlap_data_parallel
        ends: tuple[tuple[str, Term], ...] = (
            ("head_forward", self.head[0]),
            ("head_backward", self.head[1]),
            ("embedding_forward", self.embedding[0]),
            ("embedding_backward", self.embedding[1]),
            ("transfer", self.communication.transfer),
        )
        alternatives: list[Term] = []
        for name in chains.NAMES:
            terms: list[Term] = []
            for kind in self.kinds:
                layers = self._tables.of_schedule(
                    f"{name}: {kind} layers",
                    lambda p, v, m, n=name, k=kind: chains.beyond_window(model, p, v, m, n, k, window),
                    "",
                    formulas.CHAIN,
                    schedule="1f1b",
                )
                by = Monomial("layers", 1.0, (layers,))
                terms.append(Scale(f"{name}: {kind} forward", by, self.layer_forward(kind), "s"))
                terms += self._backward_layers(f"{name}: {kind} backward", by, kind)
            for part, term in ends:
                times = self._tables.of_schedule(
                    f"{name}: times {part}",
                    lambda p, v, m, n=name, q=part: chains.ends_of_chain(model, p, v, m, n, q),
                    "",
                    formulas.CHAIN,
                    schedule="1f1b",
                )
                terms.append(Scale(f"{name}: {part}", Monomial("times", 1.0, (times,)), term, "s"))
            alternatives.append(total(name, terms, "s"))
        if self._tables.has("schedule", "zb-h1"):
            alternatives += [self._zero_bubble_chain(name, ends) for name in chains.ZERO_BUBBLE_NAMES]
        return largest("pipeline", alternatives, "s")

    def _zero_bubble_chain(self, name: str, ends: Sequence[tuple[str, Term]]) -> Term:
        model, window = self._workload.model, self._constants.overlap_data_parallel
        terms: list[Term] = []
        for kind in self.kinds:

            def layers(of: str, kind: Kind = kind) -> Monomial:
                table = self._tables.of_schedule(
                    f"{name}: {kind} layers, {of}",
                    lambda p, v, m: getattr(chains.zero_bubble(model, p, v, m, name, kind, window), of),
                    "",
                    formulas.CHAIN,
                    schedule="zb-h1",
                )
                return Monomial("layers", 1.0, (table,))

            terms.append(Scale(f"{name}: {kind} forward", layers("forward"), self.layer_forward(kind), "s"))
            terms += self._backward_layers(f"{name}: {kind} backward", layers("backward"), kind)
            terms += self._backward_layers(f"{name}: {kind} gradients of inputs", layers("inputs_only"), kind, True)
        for part, term in ends:
            times = self._tables.of_schedule(
                f"{name}: times {part}",
                lambda p, v, m, q=part: chains.zero_bubble_ends(model, p, v, m, name, q),
                "",
                formulas.CHAIN,
                schedule="zb-h1",
            )
            terms.append(Scale(f"{name}: {part}", Monomial("times", 1.0, (times,)), term, "s"))
        return total(name, terms, "s")

    def _backward_layers(self, name: str, layers: Monomial, kind: Kind, inputs_only: bool = False) -> list[Term]:
        """Backward of some layers; under `full:N` a share of them runs again whole."""
        if not self._blocks:
            return [Scale(name, layers, self.layer_backward(kind, False, inputs_only), "s")]
        model = self._workload.model
        found: list[Term] = []
        for whole in (False, True):

            def share(p: Any, v: Any, r: Any, whole: bool = whole) -> Any:
                again = np.where(r == "full", 0.0, recompute.least_share(model, kind, p, v, r))
                return again if whole else 1.0 - again

            part = "again whole" if whole else "others"
            scope = ("pp", "virtual_stages", "recompute")
            table = self._tables.of_plan(f"share of {kind} layers, {part}", scope, share, "", formulas.SHARE_AGAIN)
            by = Monomial(layers.name, layers.coefficient, (*layers.factors, table))
            found.append(Scale(f"{name}, {part}", by, self.layer_backward(kind, whole, inputs_only), "s"))
        return found

    # -- the step

    def _window(self, name: str, passing: Callable[[str, Monomial, Kind], list[Term]]) -> Term:
        """Seconds of the first stage under which traffic hides."""
        model = self._workload.model
        terms: list[Term] = []
        for kind in self.kinds:
            layers = self._tables.of_plan(
                f"{kind} layers of the first stage",
                ("pp", "virtual_stages"),
                lambda p, v, k=kind: chains.shape(model, k, p, v).first,
                "",
                formulas.WINDOW,
            )
            by = Monomial("layers under which traffic hides", self._constants.overlap_data_parallel, (layers,))
            terms += passing(f"{name}, {kind}", by, kind)
        return terms[0] if len(terms) == 1 else total(name, terms, "s")

    @cached_property
    def _stage_parameters(self) -> Table:
        return self._tables.of_plan(
            "parameters of the first stage",
            ("tp", "pp", "virtual_stages"),
            lambda t, p, v: self._memory.local_parameters(t, p, v, stage=0),
            "",
            formulas.PARAMETERS,
        )

    @cached_property
    def _stage_experts(self) -> tuple[Table, ...]:
        """Factors of the parameters of routed experts on a rank of the first stage."""
        if "mixture" not in self.kinds:
            return ()
        whole = self._tables.of_plan(
            "experts of the first stage",
            ("pp", "virtual_stages"),
            lambda p, v: self._memory.local_expert_parameters(1, p, v, stage=0),
            "",
            formulas.PARAMETERS,
        )
        return whole, self._tables.of_plan("1/e", ("ep", "expert_tp"), lambda e, x: 1.0 / (e * x))

    def _optimizer(self) -> list[Term]:
        tables, memory, constants = self._tables, self._memory, self._constants

        def shared(o: Any, t: Any, p: Any, v: Any, d: Any, c: Any, z: Any) -> Any:
            gpu = compute.with_software(o.server.gpu, constants)
            return compute.optimizer_step_s(memory.local_parameters(t, p, v, stage=0), d * c, z, gpu, constants)

        scope = ("tp", "pp", "virtual_stages", "dp", "cp", "zero")
        over_group = tables.of_server("optimizer step", scope, shared, "s", formulas.OPTIMIZER)
        per_parameter = tables.of_server(
            "optimizer of a parameter",
            (),
            lambda o: compute.optimizer_step_s(1.0, 1.0, 0, compute.with_software(o.server.gpu, constants), constants),
            "s",
            formulas.OPTIMIZER,
        )
        found: list[Term] = [Monomial("optimizer step", 1.0, (over_group,), "s")]
        if tables.has("shard_within", "domain"):
            inside = tuple(
                tables.of_plan(f"1/{d} in the domain", (f"{d}_layout",), lambda n: 1.0 / n) for d in SHARDING
            )
            of_domain = (per_parameter, self._stage_parameters, *inside, tables.where("shard_within", "domain"))
            found = [
                Monomial("optimizer step", 1.0, (over_group, tables.where("shard_within", "group")), "s"),
                Monomial("optimizer step, sharded within the domain", 1.0, of_domain, "s"),
            ]
        if self._stage_experts:
            whole, inverse_ep = self._stage_experts
            plain = self._zero("ZeRO 0", (0,)).factors
            sharded = self._zero("ZeRO 1 to 3", (1, 2, 3)).factors
            inverse = tuple(tables.of_plan(f"1/{d}", (d,), lambda n: 1.0 / n) for d in ("tp", "cp", "dp"))
            found += [
                Monomial("optimizer step of experts", 1.0, (per_parameter, whole, inverse_ep, *plain), "s"),
                Monomial("optimizer step of sharded experts", 1.0, (per_parameter, whole, *inverse, *sharded), "s"),
            ]
        return found

    def _reductions(self, gradients: Sum) -> list[Term]:
        """Reduction of the first stage's gradients: all-reduced under ZeRO 0, reduced and scattered under ZeRO 1.

        `gradients` is one pass, of which an all-reduce takes two where no switch reduces.
        """
        if not self._tables.reduces((0, 1, 2)):
            return [
                Scale("reduce-scatter", self._zero("ZeRO 0 and 1", (0, 1)), gradients, "s"),
                Scale("all-gather", self._zero("ZeRO 0", (0,)), gradients, "s"),
            ]
        element_bytes = self._constants.reduced_gradient_bytes
        name = "gradients of the first stage"
        terms = self.communication.all_reduce(name, Monomial(name, element_bytes, (self._stage_parameters,), "byte"))
        if self._stage_experts:
            experts = Monomial(f"{name}, experts", element_bytes, self._stage_experts, "byte")
            terms += self.communication.expert_all_reduce(experts.name, experts)
        return [
            Scale("reduce-scatter", self._zero("ZeRO 1", (1,)), gradients, "s"),
            Scale("all-reduce", self._zero("ZeRO 0", (0,)), total(name, terms, "s"), "s"),
        ]

    @cached_property
    def total(self) -> Sum:
        """Seconds of one training step, never above the exact model's."""
        constants = self._constants
        terms: list[Term] = [self.pipeline]
        forward, backward = (
            self._window("forward window", lambda name, by, kind: [Scale(name, by, self.layer_forward(kind), "s")]),
            self._window("backward window", self._backward_layers),
        )
        if self._workload.tuning == "full":
            gradients = self._sharded(
                "gradients of the first stage",
                constants.reduced_gradient_bytes,
                self._stage_parameters,
                self._stage_experts,
                gradients=True,
            )
            weights = self._sharded(
                "weights of the first stage",
                constants.weight_bytes,
                self._stage_parameters,
                self._stage_experts,
                gradients=False,
            )
            forward = largest(
                "first forward beside the gather of weights",
                [forward, Scale("all-gather of weights", self._zero("ZeRO 1 and 2", (1, 2)), weights, "s")],
                "s",
            )
            backward = largest(
                "last backward beside the reduction of gradients",
                [
                    backward,
                    total("reduction of gradients", self._reductions(gradients), "s"),
                ],
                "s",
            )
        terms += [forward, backward]
        if self._workload.tuning == "full":
            terms += self._optimizer()
        if constants.step_overhead_s:
            terms.append(Monomial("fixed overhead", constants.step_overhead_s, (), "s"))
        return total("step time", terms, "s")
