"""Bytes on the GPUs of each pipeline stage, by part. Floor 3.

In: a `TrainingMemory` (model, sequence length, global batch, assumptions) and a plan, a mapping from the
names of the plan's decisions to values or arrays that broadcast: `tp cp ep pp dp virtual_stages micro_batch
recompute zero`, and those of `legality.USUAL` where they differ from it; with `within_domain` also `dp_layout` and
`cp_layout`, as ranks inside the NVLink domain. Out: bytes by part for a stage, the sum, the worst stage.

A stage's memory is a list of `Part`s, each a coefficient times a product of `Factor`s, each a table over a
few decisions. The sum of the parts IS the memory of the stage: the exact model adds them up, the factored
model lays the same factors as tables.

What a layer keeps is in `activations`, how many layers at once in `stages`.

Not counted: boundary buffers of the pipeline, the ring buffers of context parallelism, the vectors of the
embedding beyond the input of the first layer; all under one layer's input. A plan that is not legal (no split
of the layers, a batch that does not divide) has NaN bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codesign.cost import activations, architecture, stages
from codesign.cost.legality import USUAL
from codesign.cost.recompute import layers_in_flight as blocks_in_flight
from codesign.cost.recompute import of_other_layers, whole_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from codesign.cost.architecture import BoolArray, FloatArray, Kind
    from codesign.cost.legality import Choices
    from codesign.spec.hardware import Precision
    from codesign.spec.limits import Assumptions
    from codesign.spec.workload import Model, Tuning, Workload

FITS, TIGHT, EXCEEDS = 0, 1, 2
VERDICTS = ("fits", "tight", "exceeds")

# A narrow recipe keeps the bf16 weights and two narrow copies, plain and transposed, since the multiplication
# takes its operands in one layout only (NVIDIA Transformer Engine documentation, "Performance
# considerations", handling transposes).
NARROW_WEIGHT_BYTES: Mapping[str, float] = {"fp8": 2.0, "mxfp8": 2.0625, "nvfp4": 1.125}
# Logits in 16 bit and their fp32 copy in the loss (Megatron-LM, vocabulary-parallel cross entropy).
LOGIT_BYTES = 2.0 + 4.0
LAYOUTS = ("dp_layout", "cp_layout")
"""Ranks of these dimensions inside the NVLink domain."""
GATHERED_LAYERS = 2  # ZeRO-3: the layer at work and the one fetched ahead


# ------------------------------------------------------------------------------------------------------ parts


@dataclass(frozen=True)
class Factor:
    """A table over a few decisions; `value` takes their arrays by name."""

    decisions: tuple[str, ...]
    value: Callable[..., FloatArray]

    def at(self, plan: Mapping[str, Any]) -> FloatArray:
        return self.value(**{name: _value(plan, name) for name in self.decisions})


def _value(plan: Mapping[str, Any], name: str) -> Choices:
    """A decision of a plan, the usual one where none is stated; layouts matter to what is sharded in a domain only."""
    if name in plan:
        return np.asarray(plan[name])
    if name in LAYOUTS and np.all(np.asarray(plan.get("shard_within", "group")) == "group"):
        return np.asarray(1)
    return np.asarray(USUAL[name])


@dataclass(frozen=True)
class Part:
    """A named summand: `coefficient` bytes times the product of the factors."""

    name: str
    coefficient: float
    factors: tuple[Factor, ...] = ()

    @property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the part depends on, each once."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.decisions))

    def at(self, plan: Mapping[str, Any]) -> FloatArray:
        """Bytes for a plan, or for arrays of plans."""
        product: FloatArray = np.asarray(self.coefficient)
        for factor in self.factors:
            product = product * factor.at(plan)
        return np.asarray(product)


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one workload's training step.

    Attributes
    ----------
    precision
        Of the matrices.
    vocabulary_multiple
        Padding rule of the framework, see `architecture.padded_vocabulary`.
    attention_matrix
        Scores kept in memory; the default is flash attention.
    dropout
        Masks of dropout are kept; pre-training of today runs without.
    sequence_parallel
        What is kept token by token is shared by the tensor-parallel ranks.
    tuning
        With adapters, frozen weights have no gradients and no states of the optimizer.
    blocks, within_domain, gathers_context
        Whether plans may run again some whole layers only (`full:N`), shard within the NVLink domain, and gather keys
        and values of all contexts.
    """

    model: Model
    sequence_length: int
    global_batch: int
    assumptions: Assumptions
    precision: Precision = "bf16"
    vocabulary_multiple: int = architecture.MEGATRON_VOCABULARY_MULTIPLE
    attention_matrix: bool = False
    dropout: bool = False
    sequence_parallel: bool = True
    tuning: Tuning = "full"
    blocks: bool = False
    within_domain: bool = False
    gathers_context: bool = False

    def parts(self, stage: npt.ArrayLike) -> tuple[Part, ...]:
        """The parts of a stage's memory; `stage` counts from the front, or from the end if negative.

        Stages 0, 1 and -1 are enough to find the worst where all layers are of one kind: in the middle all
        hold the same layers and the first of them the most micro-batches. `fragmentation` is a share on top
        of all other parts but `reserved`.
        """
        spread = 1.0 + self.assumptions.memory_fragmentation
        reserved = Part("reserved", self.assumptions.memory_reserved_bytes)
        counted = (*self._states(stage), *self._buffers(), *self._activations(stage))
        return (*(Part(part.name, part.coefficient * spread, part.factors) for part in counted), reserved)

    def by_part(self, plan: Mapping[str, Any], stage: npt.ArrayLike) -> dict[str, FloatArray]:
        """Bytes of each part; `stage` and the plan's arrays broadcast."""
        found: dict[str, FloatArray] = {}
        for part in self.parts(stage):
            found[part.name] = np.asarray(found.get(part.name, 0.0) + part.at(plan))
        return found

    def total(self, plan: Mapping[str, Any], stage: npt.ArrayLike) -> FloatArray:
        """Bytes of a stage."""
        total: FloatArray = np.asarray(0.0)
        for part in self.parts(stage):
            total = total + part.at(plan)
        return np.asarray(total)

    def by_stage(self, plan: Mapping[str, Any]) -> dict[str, FloatArray]:
        """Bytes of each part on every stage of ONE plan, arrays of shape (pp,)."""
        every = np.arange(int(plan["pp"]))
        return {
            name: np.broadcast_to(values, every.shape).astype(np.float64)
            for name, values in self.by_part(plan, every).items()
        }

    def worst(self, plan: Mapping[str, Any]) -> FloatArray:
        """Bytes of the fullest stage."""
        if len(architecture.kinds(self.model)) == 1:
            return np.maximum(np.maximum(self.total(plan, 0), self.total(plan, 1)), self.total(plan, -1))
        # With dense layers in front a later stage may be the first without them.
        most = self.total(plan, 0)
        for stage in range(1, int(np.max(plan["pp"]))):
            most = np.maximum(most, self.total(plan, stage))
        return most

    # -- states

    def _states(self, stage: npt.ArrayLike) -> list[Part]:
        model, bytes_of = self.model, self.assumptions
        shared = Factor(
            ("tp", "pp", "virtual_stages"),
            lambda tp, pp, virtual_stages: self.local_parameters(tp, pp, virtual_stages, stage=stage),
        )
        levels = (
            ("weights", bytes_of.weight_bytes, 3),
            ("gradients", bytes_of.gradient_bytes, 2),
            ("optimizer", bytes_of.optimizer_bytes, 1),
        )[: None if self.tuning == "full" else 1]
        parts = [part for name, each, level in levels for part in self._spread(name, each, shared, level)]
        if self.precision in NARROW_WEIGHT_BYTES:
            matrices = Factor(
                ("tp", "pp", "virtual_stages"),
                lambda tp, pp, virtual_stages: self._local_layers(tp, pp, virtual_stages, stage),
            )
            parts += self._spread("narrow weights", NARROW_WEIGHT_BYTES[self.precision], matrices, 3)
        if model.experts:
            experts = Factor(
                ("pp", "virtual_stages"),
                lambda pp, virtual_stages: (
                    stages.stage_layers_of_kind(model, "mixture", pp, virtual_stages, stage=stage)
                    * model.experts
                    * architecture.expert_parameters(model)
                ),
            )
            parts += [
                Part(
                    f"expert {name}",
                    each,
                    (experts, *_unsharded(level, "ep", "expert_tp"), *_sharded(level, "tp", "dp", "cp")),
                )
                for name, each, level in levels
            ]
            if self.precision in NARROW_WEIGHT_BYTES:
                sharding = (*_unsharded(3, "ep", "expert_tp"), *_sharded(3, "tp", "dp", "cp"))
                parts.append(Part("expert narrow weights", NARROW_WEIGHT_BYTES[self.precision], (experts, *sharding)))
        return parts

    def _spread(self, name: str, element_bytes: float, elements: Factor, level: int) -> list[Part]:
        """A state that is sharded from a ZeRO stage on: over the data-parallel group, or over its part in a domain."""
        over_group = Part(name, element_bytes, (elements, *_sharded(level, "dp", "cp")))
        if not self.within_domain:
            return [over_group]

        def chosen(within: bool) -> Factor:
            return Factor(
                ("zero", "shard_within"),
                lambda zero, shard_within: np.asarray(
                    ((zero >= level) & (shard_within == "domain")) == within, dtype=np.float64
                ),
            )

        inside = tuple(Factor((f"{d}_layout",), lambda **by: 1.0 / next(iter(by.values()))) for d in ("dp", "cp"))
        return [
            Part(name, element_bytes, (*over_group.factors, chosen(False))),
            Part(name, element_bytes, (elements, *inside, chosen(True))),
        ]

    def local_parameters(
        self, tp: npt.ArrayLike, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike, *, stage: npt.ArrayLike
    ) -> FloatArray:
        """Parameters on one rank of a stage before any sharding over data, routed experts apart.

        Layers; embedding on the first stage; head and final norm on the last, the head also where it is tied,
        since the last stage of a pipeline keeps its own copy of the embedding (Megatron-LM).
        """
        tp, pp = np.asarray(tp), np.asarray(pp)
        index = stages.stage_index(stage, pp)
        vocabulary = architecture.padded_vocabulary(self.model.vocabulary, tp, self.vocabulary_multiple)
        matrix = vocabulary * self.model.hidden / tp
        own_head = (pp > 1) | (not self.model.tied_embeddings)
        first, last = index == 0, index == pp - 1
        ends = first * matrix + last * (own_head * matrix + self.model.hidden)
        return np.asarray(self._local_layers(tp, pp, virtual_stages, stage) + ends)

    def local_expert_parameters(
        self, ep: npt.ArrayLike, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike, *, stage: npt.ArrayLike
    ) -> FloatArray:
        """Parameters of the routed experts that one rank of a stage holds, before sharding over their data group.

        `ep` is expert times expert tensor parallelism: both cut them alike.
        """
        if not self.model.experts:
            return np.zeros(np.broadcast(ep, pp, virtual_stages, stage).shape)
        layers = stages.stage_layers_of_kind(self.model, "mixture", pp, virtual_stages, stage=stage)
        each = self.model.experts * architecture.expert_parameters(self.model)
        return np.asarray(layers * each / np.asarray(ep, dtype=np.float64))

    def _local_layers(
        self, tp: npt.ArrayLike, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike, stage: npt.ArrayLike
    ) -> FloatArray:
        total: FloatArray = np.asarray(0.0)
        for kind in architecture.kinds(self.model):
            count = stages.stage_layers_of_kind(self.model, kind, pp, virtual_stages, stage=stage)
            total = total + count * architecture.local_layer_parameters(self.model, tp, kind)
        return total

    # -- buffers of ZeRO

    def _buffers(self) -> list[Part]:
        """Whole weights of the layers at work (ZeRO-3), whole gradients of one layer (ZeRO-2 and 3)."""
        weight, gradient = self.assumptions.weight_bytes, self.assumptions.gradient_bytes
        scope = ("tp", "ep", "expert_tp")
        layer = Factor(scope, self._largest_layer)

        def gathered(tp: FloatArray, ep: FloatArray, expert_tp: FloatArray) -> FloatArray:
            vocabulary = architecture.padded_vocabulary(self.model.vocabulary, tp, self.vocabulary_multiple)
            layers = GATHERED_LAYERS * self._largest_layer(tp, ep, expert_tp)
            return np.maximum(layers, vocabulary * self.model.hidden / tp)

        return [
            Part("gather buffer", weight, (Factor(scope, gathered), _from_level(3))),
            Part("gradient buffer", gradient, (layer, _from_level(2))),
        ]

    def _largest_layer(self, tp: FloatArray, ep: FloatArray, expert_tp: FloatArray) -> FloatArray:
        largest: FloatArray = np.asarray(0.0)
        for kind in architecture.kinds(self.model):
            size = architecture.local_layer_parameters(self.model, tp, kind)
            if kind == "mixture":
                size = size + self.model.experts / (ep * expert_tp) * architecture.expert_parameters(self.model)
            largest = np.maximum(largest, size)
        return largest

    # -- activations

    def _activations(self, stage: npt.ArrayLike) -> list[Part]:
        kinds = architecture.kinds(self.model)
        parts = []
        for kind in kinds:
            name = "activations" if len(kinds) == 1 else f"activations {kind}"
            kept = Factor(("tp", "cp", "micro_batch", "recompute"), self._kept(kind))
            pipeline = ("pp", "virtual_stages", "dp", "micro_batch", "schedule")
            if not self.blocks:
                parts.append(Part(name, 1.0, (kept, Factor(pipeline, self._held(kind, stage)))))
                continue
            again = Factor(("tp", "cp", "micro_batch"), partial(self._kept(kind), recompute=np.asarray("full")))
            for each, whole in ((kept, False), (again, True)):
                held = Factor((*pipeline, "recompute"), self._held_of_blocks(kind, stage, whole))
                parts.append(Part(name, 1.0, (each, held)))
        parts.append(
            Part(
                "recompute workspace",
                1.0,
                (Factor(("tp", "cp", "micro_batch", "recompute"), self._workspace),),
            )
        )
        if self.gathers_context:
            scope = ("tp", "cp", "micro_batch", "context_exchange")
            parts.append(Part("gathered keys and values", 1.0, (Factor(scope, self._gathered_context),)))
        last = Factor(("pp",), lambda pp: np.asarray(stages.stage_index(stage, pp) == pp - 1, dtype=np.float64))
        parts.append(Part("head and loss", 1.0, (Factor(("tp", "cp", "micro_batch"), self._head), last)))
        return parts

    def _kept(self, kind: Kind) -> Callable[..., FloatArray]:
        def kept(tp: FloatArray, cp: FloatArray, micro_batch: FloatArray, recompute: Choices) -> FloatArray:
            return activations.activation_bytes(
                self.model, self.sequence_length, micro_batch, tp, cp, of_other_layers(recompute), kind,
                attention_matrix=self.attention_matrix, dropout=self.dropout,
                sequence_parallel=self.sequence_parallel,
            )  # fmt: skip

        return kept

    def _held(self, kind: Kind, stage: npt.ArrayLike) -> Callable[..., FloatArray]:
        def held(
            pp: FloatArray, virtual_stages: FloatArray, dp: FloatArray, micro_batch: FloatArray, schedule: Choices
        ) -> FloatArray:
            micro_batches, divides = self._micro_batches(dp, micro_batch)
            layers = stages.layers_in_flight(
                self.model, pp, virtual_stages, micro_batches, stage=stage, kind=kind, schedule=schedule
            )
            return np.asarray(np.where(divides, layers, np.nan))

        return held

    def _held_of_blocks(self, kind: Kind, stage: npt.ArrayLike, whole: bool) -> Callable[..., FloatArray]:
        def held(
            pp: FloatArray,
            virtual_stages: FloatArray,
            dp: FloatArray,
            micro_batch: FloatArray,
            schedule: Choices,
            recompute: Choices,
        ) -> FloatArray:
            micro_batches, divides = self._micro_batches(dp, micro_batch)
            layers = blocks_in_flight(
                self.model, pp, virtual_stages, micro_batches, recompute,
                stage=stage, kind=kind, schedule=schedule, whole=whole,
            )  # fmt: skip
            return np.asarray(np.where(divides, layers, np.nan))

        return held

    def _micro_batches(self, dp: FloatArray, micro_batch: FloatArray) -> tuple[Choices, BoolArray]:
        samples = np.asarray(dp, dtype=np.int64) * np.asarray(micro_batch, dtype=np.int64)
        return np.asarray(self.global_batch // samples), np.asarray(self.global_batch % samples == 0)

    def _workspace(self, tp: FloatArray, cp: FloatArray, micro_batch: FloatArray, recompute: Choices) -> FloatArray:
        """One layer's activations come back while its backward runs."""
        recompute = np.where(whole_layers(recompute) > 0, "full", recompute)
        most: FloatArray = np.asarray(0.0)
        for kind in architecture.kinds(self.model):
            kept = self._kept(kind)
            most = np.maximum(
                most, kept(tp, cp, micro_batch, np.asarray("none")) - kept(tp, cp, micro_batch, recompute)
            )
        return most

    def _gathered_context(
        self, tp: FloatArray, cp: FloatArray, micro_batch: FloatArray, context_exchange: Choices
    ) -> FloatArray:
        """Keys and values of the whole sequence for the layer at work, beside the rank's own."""
        heads = architecture.local_kv_heads(self.model.kv_heads, tp)
        whole = 2 * 2 * heads * self.model.head_size * self.sequence_length * micro_batch
        return np.asarray((context_exchange == "all-gather") * (1.0 - 1.0 / cp) * whole)

    def _head(self, tp: FloatArray, cp: FloatArray, micro_batch: FloatArray) -> FloatArray:
        """Input of the final norm, input of the head, logits in 16 and 32 bit; one micro-batch at a time.

        Source: Korthikanti et al. 2022, section 4.3.
        """
        tokens = self.sequence_length * micro_batch / cp
        columns = architecture.padded_vocabulary(self.model.vocabulary, tp, self.vocabulary_multiple) / tp
        return np.asarray(tokens * (2 * 2 * self.model.hidden / tp + LOGIT_BYTES * columns))


def _sharded(level: int, *decisions: str) -> tuple[Factor, ...]:
    """Cut by each of these degrees from this ZeRO stage on."""

    def factor(name: str) -> Factor:
        return Factor(("zero", name), lambda **by: np.asarray(np.where(by["zero"] >= level, 1.0 / by[name], 1.0)))

    return tuple(factor(name) for name in decisions)


def _unsharded(level: int, *decisions: str) -> tuple[Factor, ...]:
    """Cut by each of these degrees below this ZeRO stage: with the data group of experts they make up tp * cp * dp."""

    def factor(name: str) -> Factor:
        return Factor(("zero", name), lambda **by: np.asarray(np.where(by["zero"] >= level, 1.0, 1.0 / by[name])))

    return tuple(factor(name) for name in decisions)


def _from_level(level: int) -> Factor:
    return Factor(("zero",), lambda zero: np.asarray(zero >= level, dtype=np.float64))


def training_memory(
    workload: Workload,
    assumptions: Assumptions,
    vocabulary_multiple: int,
    *,
    blocks: bool = False,
    within_domain: bool = False,
    gathers_context: bool = False,
) -> TrainingMemory:
    """Memory of a workload's step, see `TrainingMemory` for the switches.

    Without fusion scores are kept, and the dropout of that time with them.
    """
    unfused = workload.attention == "unfused"
    return TrainingMemory(
        model=workload.model,
        sequence_length=workload.sequence_length,
        global_batch=workload.global_batch,
        assumptions=assumptions,
        precision=workload.precision,
        vocabulary_multiple=vocabulary_multiple,
        attention_matrix=unfused,
        dropout=unfused,
        sequence_parallel=workload.sequence_parallel,
        tuning=workload.tuning,
        blocks=blocks,
        within_domain=within_domain,
        gathers_context=gathers_context,
    )


# ---------------------------------------------------------------------------------------------------- verdict


def verdict(needed_bytes: npt.ArrayLike, capacity_bytes: npt.ArrayLike, band: float) -> npt.NDArray[np.int64]:
    """`FITS`, `TIGHT` or `EXCEEDS`, by a relative error band of the model.

    Fits: still under the capacity if the model is low by `band`. Exceeds: over it even if the model is high
    by `band`. Tight: between, where runs may fail now and then. NaN exceeds.
    """
    needed = np.asarray(needed_bytes, dtype=np.float64)
    capacity = np.asarray(capacity_bytes, dtype=np.float64)
    fits = needed * (1.0 + band) <= capacity
    tight = needed * (1.0 - band) <= capacity
    return np.select([fits, tight], [FITS, TIGHT], EXCEEDS).astype(np.int64)
