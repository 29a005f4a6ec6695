"""The step time as one term. Floor 3. In: tables. Out: the terms of a layer, of the pipeline and of the whole step.

A layer is computed and communicates; stages of layers make a pipeline, of which every chain of dependent operations is
a lower bound; data-parallel traffic hides under part of the first forward and the last backward:

    step = max(chains) - window (F + B) + max(window F, gather) + max(window B, reduction) + optimizer

with F, B the forward and backward of one micro-batch on the first stage. The subtraction is made on the coefficients of
the chains, so that every term stays non-negative.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from codesign.cost import chains, compute
from codesign.cost.communication import Communication
from codesign.cost.memory import TrainingMemory
from codesign.cost.tables import Tables
from codesign.expr import Monomial, Scale, Sum, Table, Term
from codesign.expr.term import largest, total

GATHERS_A_PASS = 4.0
"""All-gathers and reduce-scatters of a layer in one pass: two each, around attention and around the feed-forward
(Korthikanti et al. 2022, section 4.2.2). The backward has as many; its further gather hides under the weight gradient.
"""

RING_BACKWARD_TO_FORWARD = 2.0
"""The ring passes keys and values and their gradients in the backward: twice the bytes of the forward."""


class Step:
    """Terms of the step time of one design space."""

    def __init__(self, tables: Tables, memory: TrainingMemory) -> None:
        self._tables = tables
        self._memory = memory
        self.communication = Communication(tables)

    # -- tables of the layer

    def _layer_table(self, part: str) -> Table:
        workload = self._tables.workload

        def value(option: object, t: object, c: object, b: object) -> object:
            seconds = compute.layer_forward(
                workload.model,
                workload.sequence_length,
                b,  # type: ignore[arg-type]
                t,  # type: ignore[arg-type]
                c,  # type: ignore[arg-type]
                option.server.gpu,  # type: ignore[attr-defined]
                workload.precision,
            )
            return seconds.attention_s if part == "attention core" else seconds.total_s - seconds.attention_s

        return self._tables.of_server(f"{part} of a layer", ("tp", "cp", "micro_batch"), value, "s")

    def _recompute(self, base: float, kinds: tuple[str, ...]) -> Table:
        """`base` passes, and one more where these kinds of recomputation run it again."""
        return self._tables.of_plan(
            f"{base} passes and recomputation ({', '.join(kinds)})",
            ("recompute",),
            lambda r: base + np.isin(r, kinds),
        )

    def _zero(self, name: str, levels: tuple[int, ...]) -> Monomial:
        return Monomial(name, 1.0, (self._tables.of_plan(name, ("zero",), lambda z: np.isin(z, levels)),))

    # -- one layer, one micro-batch

    @cached_property
    def layer_forward(self) -> Term:
        """Forward of one layer for one micro-batch: matrices and elementwise, attention beside its ring, gathers."""
        dense, core = self._dense, self._core
        attention = largest(
            "attention and ring, forward",
            [Monomial("attention core, forward", 1.0, (core,), "s"), *self.communication.ring],
            "s",
        )
        gathers = Scale(
            "tensor-parallel, forward", Monomial("gathers", GATHERS_A_PASS), self.communication.tensor_gather, "s"
        )
        own = total("layer forward", [Monomial("matrices, forward", 1.0, (dense,), "s"), attention, gathers], "s")
        gather = Scale("weights of a layer", self._zero("ZeRO 3", (3,)), self._layer_weights, "s")
        return largest("layer forward beside its weights", [own, gather], "s")

    @cached_property
    def layer_backward(self) -> Term:
        """Backward of one layer for one micro-batch, with what is recomputed."""
        full, core_again = ("full",), ("full", "selective")
        ring_passes = Monomial("ring passes", 1.0, (self._recompute(RING_BACKWARD_TO_FORWARD, core_again),))
        core_passes = self._recompute(compute.ATTENTION_BACKWARD_TO_FORWARD, core_again)
        attention = largest(
            "attention and ring, backward",
            [
                Monomial("attention core, backward", 1.0, (self._core, core_passes), "s"),
                *(Scale(f"{ring.name}, backward", ring_passes, ring, "s") for ring in self.communication.ring),
            ],
            "s",
        )
        dense_passes = self._recompute(compute.BACKWARD_TO_FORWARD, full)
        gathers = Scale(
            "tensor-parallel, backward",
            Monomial("gathers", GATHERS_A_PASS, (self._recompute(1.0, full),)),
            self.communication.tensor_gather,
            "s",
        )
        own = total(
            "layer backward",
            [Monomial("matrices, backward", 1.0, (self._dense, dense_passes), "s"), attention, gathers],
            "s",
        )
        sharding = total(
            "weights and gradients of a layer",
            [
                Scale("weights of a layer", self._zero("ZeRO 3", (3,)), self._layer_weights, "s"),
                Scale("gradients of a layer", self._zero("ZeRO 2 and 3", (2, 3)), self._layer_gradients, "s"),
            ],
            "s",
        )
        return largest("layer backward beside weights and gradients", [own, sharding], "s")

    @cached_property
    def _dense(self) -> Table:
        return self._layer_table("matrices and elementwise")

    @cached_property
    def _core(self) -> Table:
        return self._layer_table("attention core")

    @cached_property
    def _layer_weights(self) -> Sum:
        return self._sharded(
            "weights of a layer", self._tables.assumptions.weight_bytes, self.communication.layer_parameters
        )

    @cached_property
    def _layer_gradients(self) -> Sum:
        return self._sharded(
            "gradients of a layer", self._tables.assumptions.gradient_bytes, self.communication.layer_parameters
        )

    def _sharded(self, name: str, element_bytes: float, parameters: Table) -> Sum:
        """Gather or reduction over the group that shares the same parameters: data and context parallel ranks."""
        message = Monomial(name, element_bytes, (parameters,), "byte")
        return self.communication.gather(name, message, ("dp", "cp"))

    # -- ends of the pipeline

    def _end(self, name: str, scope: tuple[str, ...], value: object) -> Monomial:
        return Monomial(name, 1.0, (self._tables.of_server(name, scope, value),), "s")  # type: ignore[arg-type]

    @cached_property
    def head(self) -> tuple[Monomial, Monomial]:
        """Forward and backward of output matrix and loss for one micro-batch."""
        w, multiple = self._tables.workload, self._memory.vocabulary_multiple
        scope = ("tp", "cp", "micro_batch")

        def forward(option: Any, tp: Any, cp: Any, micro_batch: Any) -> Any:
            gpu = option.server.gpu
            return compute.head_forward(w.model, w.sequence_length, micro_batch, tp, cp, gpu, multiple).total_s

        def backward(option: Any, tp: Any, cp: Any, micro_batch: Any) -> Any:
            gpu = option.server.gpu
            return compute.head_backward(w.model, w.sequence_length, micro_batch, tp, cp, gpu, multiple).total_s

        return self._end("head, forward", scope, forward), self._end("head, backward", scope, backward)

    @cached_property
    def embedding(self) -> tuple[Monomial, Monomial]:
        """Forward and backward of the embedding for one micro-batch."""
        w = self._tables.workload
        scope = ("cp", "micro_batch")

        def passing(option: Any, cp: Any, micro_batch: Any) -> compute.LayerSeconds:
            return compute.embedding_forward(w.model, w.sequence_length, micro_batch, cp, option.server.gpu)

        def forward(option: Any, cp: Any, micro_batch: Any) -> Any:
            return passing(option, cp, micro_batch).total_s

        def backward(option: Any, cp: Any, micro_batch: Any) -> Any:
            return compute.embedding_backward(passing(option, cp, micro_batch)).total_s

        return self._end("embedding, forward", scope, forward), self._end("embedding, backward", scope, backward)

    # -- the pipeline

    @cached_property
    def pipeline(self) -> Term:
        """Largest of the chains, less the window under which data-parallel traffic may hide."""
        layers = self._tables.workload.model.layers
        window = self._tables.assumptions.overlap_data_parallel
        parts: tuple[tuple[str, Term], ...] = (
            ("forward", self.layer_forward),
            ("backward", self.layer_backward),
            ("head_forward", self.head[0]),
            ("head_backward", self.head[1]),
            ("embedding_forward", self.embedding[0]),
            ("embedding_backward", self.embedding[1]),
            ("transfer", self.communication.transfer),
        )
        alternatives = []
        for name in chains.NAMES:
            terms = []
            for part, term in parts:
                less = window if part in ("forward", "backward") else 0.0
                times = self._tables.of_schedule(
                    f"{name}: times {part}",
                    lambda p, v, m, n=name, q=part, w=less: chains.beyond_window(layers, p, v, m, n, q, w),
                )
                terms.append(Scale(f"{name}: {part}", Monomial("times", 1.0, (times,)), term, "s"))
            alternatives.append(total(name, terms, "s"))
        return largest("pipeline", alternatives, "s")

    # -- the step

    @cached_property
    def total(self) -> Sum:
        """Seconds of one training step, never above the exact model's."""
        tables, memory, constants = self._tables, self._memory, self._tables.assumptions
        layers = tables.workload.model.layers
        window = Monomial(
            "layers under which traffic hides",
            constants.overlap_data_parallel,
            (
                tables.of_plan(
                    "layers of the first stage",
                    ("pp", "virtual_stages"),
                    lambda p, v: chains.window_layers(layers, p, v),
                ),
            ),
        )
        stage = tables.of_plan(
            "parameters of the first stage",
            ("tp", "pp", "virtual_stages"),
            lambda t, p, v: memory.local_parameters(t, p, v, stage=0),
        )
        gradients = self._sharded("gradients of the first stage", constants.gradient_bytes, stage)
        weights = self._sharded("weights of the first stage", constants.weight_bytes, stage)
        optimizer = tables.of_server(
            "optimizer step",
            ("tp", "pp", "virtual_stages", "dp", "cp", "zero"),
            lambda o, t, p, v, d, c, z: compute.optimizer_step_s(
                memory.local_parameters(t, p, v, stage=0), d * c, z, o.server.gpu, constants
            ),
            "s",
        )
        return total(
            "step time",
            [
                self.pipeline,
                largest(
                    "first forward beside the gather of weights",
                    [
                        Scale("forward window", window, self.layer_forward, "s"),
                        Scale("all-gather of weights", self._zero("ZeRO 1 and 2", (1, 2)), weights, "s"),
                    ],
                    "s",
                ),
                largest(
                    "last backward beside the reduction of gradients",
                    [
                        Scale("backward window", window, self.layer_backward, "s"),
                        total(
                            "reduction of gradients",
                            [
                                Scale("reduce-scatter", self._zero("ZeRO 0 and 1", (0, 1)), gradients, "s"),
                                Scale("all-gather", self._zero("ZeRO 0", (0,)), gradients, "s"),
                            ],
                            "s",
                        ),
                    ],
                    "s",
                ),
                Monomial("optimizer step", 1.0, (optimizer,), "s"),
            ],
            "s",
        )
