"""Seconds of one step of an explicit design. Floor 4. In: plan, rank map, server, network. Out: seconds by cause.

Layer times come from `codesign.cost`; the groups' spans from the rank map; the pipeline is played event by event, each
stage with its own layers, the first with the embedding, the last with the head. Before it, every stage gathers what
weights it needs beside its first forward; after it, every stage reduces its gradients beside its last backward and
runs its optimizer. The step ends with the last stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture, collectives, compute, stages
from codesign.cost.collectives import TierRates
from codesign.cost.communication import activation_message_bytes, ring_message_bytes
from codesign.cost.memory import TrainingMemory
from codesign.cost.step import GATHERS_A_PASS, RING_BACKWARD_TO_FORWARD
from codesign.design import Plan
from codesign.design.placement import RankMap
from codesign.exact import schedule
from codesign.spec.hardware import Gpu
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer for one micro-batch, one pass, by cause; the causes add up to `total_s`."""

    compute_s: float
    attention_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    sharding_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.attention_s + self.recompute_s + self.tensor_s + self.context_s + self.sharding_s


@dataclass(frozen=True)
class StepSeconds:
    """One step: its parts by cause on the stage that works longest (they add up to `total_s`), and its bubble."""

    parts_s: Mapping[str, float]
    total_s: float
    bubble_fraction: float


def layers(
    workload: Workload, plan: Plan, ranks: RankMap, gpu: Gpu, rates: TierRates, assumptions: Assumptions
) -> tuple[Layer, Layer]:
    """Forward and backward of one layer for one micro-batch on one rank."""
    model = workload.model
    forward = compute.layer_forward(
        model, workload.sequence_length, plan.micro_batch, plan.tp, plan.cp, gpu, workload.precision
    )
    backward = compute.layer_backward(forward)
    again = compute.layer_recompute(forward, plan.recompute)
    gather_s = collectives.gather_s(
        activation_message_bytes(workload) * plan.micro_batch / plan.cp, ranks.spans(("tp",)), rates
    )
    ring_s = collectives.ring_s(
        ring_message_bytes(workload) * plan.micro_batch / (plan.cp * plan.tp), ranks.spans(("cp",)), rates
    )
    group = ranks.spans(("dp", "cp"))
    parameters = float(architecture.local_layer_parameters(model, plan.tp))
    weights_s = collectives.gather_s(assumptions.weight_bytes * parameters, group, rates) if plan.zero == 3 else 0.0
    gradients_s = collectives.gather_s(assumptions.gradient_bytes * parameters, group, rates) if plan.zero >= 2 else 0.0
    full, core_again = float(plan.recompute == "full"), float(plan.recompute != "none")

    def one(
        seconds: compute.LayerSeconds,
        again_s: float,
        core_again_s: float,
        gathers: float,
        rings: float,
        beside_s: float,
    ) -> Layer:
        dense_s = float(seconds.total_s - seconds.attention_s)
        core_s = float(seconds.attention_s)
        context_s = max(0.0, rings * ring_s - core_s - core_again_s)
        own_s = dense_s + core_s + again_s + core_again_s + context_s + gathers * gather_s
        return Layer(dense_s, core_s, again_s + core_again_s, gathers * gather_s, context_s, max(0.0, beside_s - own_s))

    return (
        one(forward, 0.0, 0.0, GATHERS_A_PASS, 1.0, weights_s),
        one(
            backward,
            float(again.total_s - again.attention_s),
            float(again.attention_s),
            GATHERS_A_PASS * (1.0 + full),
            RING_BACKWARD_TO_FORWARD + core_again,
            weights_s + gradients_s,
        ),
    )


def step(
    workload: Workload,
    plan: Plan,
    ranks: RankMap,
    gpu: Gpu,
    rates: TierRates,
    assumptions: Assumptions,
    memory: TrainingMemory,
) -> StepSeconds:
    """Play one step."""
    model, sequence = workload.model, workload.sequence_length
    forward, backward = layers(workload, plan, ranks, gpu, rates, assumptions)
    split = np.asarray(stages.layers_of_stages(model.layers, plan.pp, plan.virtual_stages), dtype=np.float64)
    micro_batches = workload.global_batch // (plan.dp * plan.micro_batch)

    embed = compute.embedding_forward(model, sequence, plan.micro_batch, plan.cp, gpu)
    embed_s = float(embed.total_s), float(compute.embedding_backward(embed).total_s)
    arguments = (model, sequence, plan.micro_batch, plan.tp, plan.cp, gpu, memory.vocabulary_multiple)
    head_s = float(compute.head_forward(*arguments).total_s), float(compute.head_backward(*arguments).total_s)

    forward_s, backward_s = split * forward.total_s, split * backward.total_s
    forward_s[0, 0] += embed_s[0]
    backward_s[0, 0] += embed_s[1]
    forward_s[-1, -1] += head_s[0]
    backward_s[-1, -1] += head_s[1]
    message = activation_message_bytes(workload) * plan.micro_batch / (plan.cp * plan.tp)
    transfer_s = np.array([collectives.hop_s(message, int(t), rates) for t in ranks.boundary_tiers(plan.pp)])
    played = schedule.play(forward_s, backward_s, transfer_s, micro_batches)

    every = np.arange(plan.pp)
    parameters = np.asarray(
        memory.local_parameters(plan.tp, plan.pp, plan.virtual_stages, stage=every), dtype=np.float64
    ).reshape(-1)
    group = ranks.spans(("dp", "cp"))
    gradients_s = np.array([collectives.gather_s(assumptions.gradient_bytes * p, group, rates) for p in parameters])
    weights_s = np.array([collectives.gather_s(assumptions.weight_bytes * p, group, rates) for p in parameters])
    stage_layers = split.sum(axis=1)
    window = assumptions.overlap_data_parallel
    gather_s = weights_s if plan.zero in (1, 2) else np.zeros(plan.pp)
    reduce_s = gradients_s * {0: 2.0, 1: 1.0}.get(plan.zero, 0.0)
    exposed_gather_s = float(np.max(np.maximum(0.0, gather_s - window * stage_layers * forward.total_s)))
    exposed_reduce_s = np.maximum(0.0, reduce_s - window * stage_layers * backward.total_s)
    optimizer_s = np.asarray(
        compute.optimizer_step_s(parameters, plan.dp * plan.cp, plan.zero, gpu, assumptions)
    ).reshape(-1)
    ends = played.last_backward_end_s + exposed_reduce_s + optimizer_s
    total_s = exposed_gather_s + float(ends.max())

    # Where the time goes is told for the stage that works longest; the others wait for it.
    busy = int(np.argmax(micro_batches * (forward_s + backward_s).sum(axis=1)))
    passes = micro_batches * float(stage_layers[busy])
    parts = {
        "compute": passes * (forward.compute_s + backward.compute_s),
        "attention": passes * (forward.attention_s + backward.attention_s),
        "recompute": passes * (forward.recompute_s + backward.recompute_s),
        "embedding and head": micro_batches * ((busy == 0) * sum(embed_s) + (busy == plan.pp - 1) * sum(head_s)),
        "tensor-parallel communication": passes * (forward.tensor_s + backward.tensor_s),
        "context-parallel communication": passes * (forward.context_s + backward.context_s),
        "sharded weights and gradients": passes * (forward.sharding_s + backward.sharding_s),
        "pipeline bubble and transfers": 0.0,
        "data-parallel gather": exposed_gather_s,
        "data-parallel reduction": float(exposed_reduce_s[busy]),
        "optimizer": float(optimizer_s[busy]),
    }
    idle_s = max(0.0, total_s - sum(parts.values()))
    parts["pipeline bubble and transfers"] = idle_s
    return StepSeconds(parts, total_s, idle_s / total_s)
