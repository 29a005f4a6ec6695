"""Bytes on the GPUs of each pipeline stage, by part. Floor 3.

In: a `TrainingMemory` (model, sequence length, global batch, assumptions) and a plan, a mapping from the
names of the plan's decisions to values or arrays that broadcast: `tp cp ep pp dp virtual_stages micro_batch
recompute zero`. Out: bytes by part for a stage, the sum, the worst stage.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codesign.cost import activations, architecture, stages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from codesign.cost.architecture import FloatArray, Kind
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
GATHERED_LAYERS = 2  # ZeRO-3: the layer at work and the one fetched ahead


# ------------------------------------------------------------------------------------------------------ parts


@dataclass(frozen=True)
class Factor:
    """A table over a few decisions; `value` takes their arrays by name."""

    decisions: tuple[str, ...]
    value: Callable[..., FloatArray]

    def at(self, plan: Mapping[str, Any]) -> FloatArray:
        return self.value(**{name: np.asarray(plan[name]) for name in self.decisions})


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
        return {part.name: part.at(plan) for part in self.parts(stage)}

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
        parts = [Part(name, each, (shared, *_sharded(level, "dp", "cp"))) for name, each, level in levels]
        if self.precision in NARROW_WEIGHT_BYTES:
            matrices = Factor(
                ("tp", "pp", "virtual_stages"),
                lambda tp, pp, virtual_stages: self._local_layers(tp, pp, virtual_stages, stage),
            )
            parts.append(
                Part("narrow weights", NARROW_WEIGHT_BYTES[self.precision], (matrices, *_sharded(3, "dp", "cp")))
            )
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
                    (experts, _unsharded(level, "ep"), *_sharded(level, "tp", "dp", "cp")),
                )
                for name, each, level in levels
            ]
            if self.precision in NARROW_WEIGHT_BYTES:
                sharding = (_unsharded(3, "ep"), *_sharded(3, "tp", "dp", "cp"))
                parts.append(Part("expert narrow weights", NARROW_WEIGHT_BYTES[self.precision], (experts, *sharding)))
        return parts

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
        """Parameters of the routed experts that one rank of a stage holds, before sharding over their data group."""
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
        layer = Factor(("tp", "ep"), self._largest_layer)

        def gathered(tp: FloatArray, ep: FloatArray) -> FloatArray:
            vocabulary = architecture.padded_vocabulary(self.model.vocabulary, tp, self.vocabulary_multiple)
            return np.maximum(GATHERED_LAYERS * self._largest_layer(tp, ep), vocabulary * self.model.hidden / tp)

        return [
            Part("gather buffer", weight, (Factor(("tp", "ep"), gathered), _from_level(3))),
            Part("gradient buffer", gradient, (layer, _from_level(2))),
        ]

    def _largest_layer(self, tp: FloatArray, ep: FloatArray) -> FloatArray:
        largest: FloatArray = np.asarray(0.0)
        for kind in architecture.kinds(self.model):
            size = architecture.local_layer_parameters(self.model, tp, kind)
            if kind == "mixture":
                size = size + self.model.experts / ep * architecture.expert_parameters(self.model)
            largest = np.maximum(largest, size)
        return largest

    # -- activations

    def _activations(self, stage: npt.ArrayLike) -> list[Part]:
        kinds = architecture.kinds(self.model)
        parts = [
            Part(
                "activations" if len(kinds) == 1 else f"activations {kind}",
                1.0,
                (
                    Factor(("tp", "cp", "micro_batch", "recompute"), self._kept(kind)),
                    Factor(("pp", "virtual_stages", "dp", "micro_batch"), self._held(kind, stage)),
                ),
            )
            for kind in kinds
        ]
        parts.append(
            Part(
                "recompute workspace",
                1.0,
                (Factor(("tp", "cp", "micro_batch", "recompute"), self._workspace),),
            )
        )
        last = Factor(("pp",), lambda pp: np.asarray(stages.stage_index(stage, pp) == pp - 1, dtype=np.float64))
        parts.append(Part("head and loss", 1.0, (Factor(("tp", "cp", "micro_batch"), self._head), last)))
        return parts

    def _kept(self, kind: Kind) -> Callable[..., FloatArray]:
        def kept(tp: FloatArray, cp: FloatArray, micro_batch: FloatArray, recompute: FloatArray) -> FloatArray:
            return activations.activation_bytes(
                self.model, self.sequence_length, micro_batch, tp, cp, recompute, kind,
                attention_matrix=self.attention_matrix, dropout=self.dropout,
                sequence_parallel=self.sequence_parallel,
            )  # fmt: skip

        return kept

    def _held(self, kind: Kind, stage: npt.ArrayLike) -> Callable[..., FloatArray]:
        def held(pp: FloatArray, virtual_stages: FloatArray, dp: FloatArray, micro_batch: FloatArray) -> FloatArray:
            samples = np.asarray(dp, dtype=np.int64) * np.asarray(micro_batch, dtype=np.int64)
            whole = self.global_batch % samples == 0
            layers = stages.layers_in_flight(
                self.model, pp, virtual_stages, self.global_batch // samples, stage=stage, kind=kind
            )
            return np.asarray(np.where(whole, layers, np.nan))

        return held

    def _workspace(self, tp: FloatArray, cp: FloatArray, micro_batch: FloatArray, recompute: FloatArray) -> FloatArray:
        """One layer's activations come back while its backward runs."""
        most: FloatArray = np.asarray(0.0)
        for kind in architecture.kinds(self.model):
            kept = self._kept(kind)
            most = np.maximum(
                most, kept(tp, cp, micro_batch, np.asarray("none")) - kept(tp, cp, micro_batch, recompute)
            )
        return most

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


def _unsharded(level: int, decision: str) -> Factor:
    """Cut by this degree below this ZeRO stage: with its data group `ep` makes up tp * cp * dp."""
    return Factor(("zero", decision), lambda **by: np.asarray(np.where(by["zero"] >= level, 1.0, 1.0 / by[decision])))


def _from_level(level: int) -> Factor:
    return Factor(("zero",), lambda zero: np.asarray(zero >= level, dtype=np.float64))


def training_memory(workload: Workload, assumptions: Assumptions, vocabulary_multiple: int) -> TrainingMemory:
    """Memory of a workload's step. Without fusion scores are kept, and the dropout of that time with them."""
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
