"""Seconds of one step of an explicit design. Floor 4. In: plan, rank map, server, network. Out: seconds by cause.

Layer times come from `codesign.cost`; the groups' spans from the rank map; the pipeline is played event by event, each
stage with its own layers, the first with the embedding, the last with the head. Before it, every stage gathers what
weights it needs beside its first forward; after it, every stage reduces its gradients beside its last backward and
runs its optimizer. The step ends with the last stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture, collectives, compute, stages
from codesign.cost.architecture import Kind
from codesign.cost.collectives import TierRates
from codesign.cost.communication import activation_message_bytes, ring_message_bytes
from codesign.cost.memory import TrainingMemory
from codesign.cost.step import EXCHANGES_A_PASS, GATHERS_A_PASS, RING_BACKWARD_TO_FORWARD
from codesign.design import Plan
from codesign.design.placement import RankMap
from codesign.exact import schedule
from codesign.spec.hardware import Gpu
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spans:
    """Factors by tier of the groups of a plan, widest of each kind; a pipeline boundary has a tier for each stage."""

    tensor: tuple[int, int, int]
    context: tuple[int, int, int]
    data: tuple[int, int, int]
    expert: tuple[int, int, int]
    expert_data: tuple[int, int, int]
    boundary_tiers: tuple[int, ...]


def spans(plan: Plan, ranks: RankMap) -> Spans:
    """Read the groups of a plan off the rank map."""
    expert, expert_data = ranks.expert_spans(plan.ep)
    return Spans(
        tensor=ranks.spans(("tp",)),
        context=ranks.spans(("cp",)),
        data=ranks.spans(("dp", "cp")),
        expert=expert,
        expert_data=expert_data,
        boundary_tiers=tuple(int(tier) for tier in ranks.boundary_tiers(plan.pp)),
    )


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer for one micro-batch, one pass, by cause; the causes add up to `total_s`."""

    compute_s: float
    attention_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    host_s: float
    sharding_s: float

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, each.name) for each in fields(self)))


@dataclass(frozen=True)
class StepSeconds:
    """One step: its parts by cause on the stage that works longest (they add up to `total_s`), and its bubble."""

    parts_s: Mapping[str, float]
    total_s: float
    bubble_fraction: float


def layers(
    workload: Workload,
    plan: Plan,
    groups: Spans,
    gpu: Gpu,
    rates: TierRates,
    assumptions: Assumptions,
    kind: Kind = "dense",
) -> tuple[Layer, Layer]:
    """Forward and backward of one layer of a kind for one micro-batch on one rank."""
    model = workload.model
    gpu = compute.with_software(gpu, assumptions)
    forward = compute.layer_forward(
        model,
        workload.sequence_length,
        plan.micro_batch,
        plan.tp,
        plan.cp,
        gpu,
        workload.precision,
        kind=kind,
        ep=plan.ep,
        imbalance=assumptions.expert_imbalance,
        attention=workload.attention,
        sequence_parallel=workload.sequence_parallel,
    )
    backward = compute.layer_backward(forward, workload.attention, workload.tuning)
    again = compute.layer_recompute(forward, plan.recompute)
    exposed = 1.0 - assumptions.overlap_tensor_parallel
    launch_s = assumptions.collective_launch_s
    gather_s = exposed * (
        collectives.gather_s(activation_message_bytes(workload) * plan.micro_batch / plan.cp, groups.tensor, rates)
        + launch_s * (plan.tp > 1)
    )
    share = plan.micro_batch / (plan.cp * plan.tp)
    ring_s = collectives.ring_s(ring_message_bytes(workload) * share, groups.context, rates)
    exchange_s = 0.0
    if kind == "mixture":
        message = assumptions.expert_imbalance * activation_message_bytes(workload) * share
        exchange_s = collectives.exchange_s(message, groups.expert, model.top_k, rates) + launch_s * (plan.ep > 1)
    weights_s, gradients_s = _sharding(workload, plan, groups, rates, assumptions, kind)
    full, core_again = float(plan.recompute == "full"), float(plan.recompute != "none")

    def one(
        seconds: compute.LayerSeconds,
        again_s: float,
        core_again_s: float,
        passes: float,
        rings: float,
        host_s: float,
        beside_s: float,
    ) -> Layer:
        dense_s = float(seconds.total_s - seconds.attention_s)
        core_s = float(seconds.attention_s)
        context_s = max(0.0, rings * ring_s - core_s - core_again_s)
        tensor_s = passes * GATHERS_A_PASS * gather_s
        inner_s = dense_s + core_s + again_s + core_again_s + context_s + tensor_s
        # No more of an exchange can hide than there is work to hide it.
        whole_s = passes * EXCHANGES_A_PASS * exchange_s
        expert_s = max((1.0 - assumptions.overlap_expert_parallel) * whole_s, whole_s - inner_s)
        own_s = inner_s + expert_s
        idle_s = max(0.0, host_s - own_s)
        sharding_s = max(0.0, beside_s - own_s - idle_s)
        return Layer(dense_s, core_s, again_s + core_again_s, tensor_s, context_s, expert_s, idle_s, sharding_s)

    host_s = float(compute.host_forward_s(assumptions, kind, plan.tp))
    return (
        one(forward, 0.0, 0.0, 1.0, 1.0, host_s, weights_s),
        one(
            backward,
            float(again.total_s - again.attention_s),
            float(again.attention_s),
            1.0 + full,
            RING_BACKWARD_TO_FORWARD + core_again,
            host_s * (compute.BACKWARD_TO_FORWARD + full),
            weights_s + gradients_s,
        ),
    )


def _sharding(
    workload: Workload, plan: Plan, groups: Spans, rates: TierRates, assumptions: Assumptions, kind: Kind
) -> tuple[float, float]:
    """Seconds to gather the weights and to reduce the gradients of one layer, where ZeRO does so for each of them."""
    model = workload.model
    shared = float(architecture.local_layer_parameters(model, plan.tp, kind))
    own = model.experts / plan.ep * architecture.expert_parameters(model) if kind == "mixture" else 0.0

    def over(element_bytes: float) -> float:
        element_bytes /= assumptions.sharding_efficiency
        return collectives.gather_s(element_bytes * shared, groups.data, rates) + (
            collectives.gather_s(element_bytes * own, groups.expert_data, rates) if own else 0.0
        )

    weights_s = over(assumptions.weight_bytes) if plan.zero == 3 else 0.0
    gradients_s = over(assumptions.reduced_gradient_bytes) if plan.zero >= 2 and workload.tuning == "full" else 0.0
    return weights_s, gradients_s


def step(
    workload: Workload,
    plan: Plan,
    groups: Spans,
    gpu: Gpu,
    rates: TierRates,
    assumptions: Assumptions,
    memory: TrainingMemory,
) -> StepSeconds:
    """Play one step."""
    model, sequence = workload.model, workload.sequence_length
    split = {kind: _layers_of(memory, kind, plan) for kind in architecture.kinds(model)}
    passes = {kind: layers(workload, plan, groups, gpu, rates, assumptions, kind) for kind in split}
    micro_batches = workload.global_batch // (plan.dp * plan.micro_batch)

    gpu = compute.with_software(gpu, assumptions)
    embed = compute.embedding_forward(model, sequence, plan.micro_batch, plan.cp, gpu)
    embed_s = float(embed.total_s), float(compute.embedding_backward(embed).total_s)
    arguments = (model, sequence, plan.micro_batch, plan.tp, plan.cp, gpu, memory.vocabulary_multiple)
    head_s = float(compute.head_forward(*arguments).total_s), float(compute.head_backward(*arguments).total_s)

    forward_s: Floats = np.asarray(sum(split[kind] * passes[kind][0].total_s for kind in split))
    backward_s: Floats = np.asarray(sum(split[kind] * passes[kind][1].total_s for kind in split))
    layers_forward_s, layers_backward_s = forward_s.sum(axis=1), backward_s.sum(axis=1)
    forward_s[0, 0] += embed_s[0]
    backward_s[0, 0] += embed_s[1]
    forward_s[-1, -1] += head_s[0]
    backward_s[-1, -1] += head_s[1]
    message = activation_message_bytes(workload) * plan.micro_batch / (plan.cp * plan.tp)
    transfer_s = np.array([collectives.hop_s(message, tier, rates) for tier in groups.boundary_tiers])
    played = schedule.play(forward_s, backward_s, transfer_s, micro_batches)

    every = np.arange(plan.pp)
    shared = np.broadcast_to(memory.local_parameters(plan.tp, plan.pp, plan.virtual_stages, stage=every), every.shape)
    own = np.broadcast_to(
        memory.local_expert_parameters(plan.ep, plan.pp, plan.virtual_stages, stage=every), every.shape
    )
    trains = float(workload.tuning == "full")

    def over_groups(element_bytes: float) -> Floats:
        return np.array(
            [
                collectives.gather_s(element_bytes * p, groups.data, rates)
                + (collectives.gather_s(element_bytes * e, groups.expert_data, rates) if e else 0.0)
                for p, e in zip(shared, own, strict=True)
            ]
        )

    window = assumptions.overlap_data_parallel
    none = np.zeros(plan.pp)
    gather_s = trains * over_groups(assumptions.weight_bytes) if plan.zero in (1, 2) else none
    reductions = trains * {0: 2.0, 1: 1.0}.get(plan.zero, 0.0)
    reduce_s = reductions * over_groups(assumptions.reduced_gradient_bytes) if reductions else none
    exposed_gather_s = float(np.max(np.maximum(0.0, gather_s - window * layers_forward_s)))
    exposed_reduce_s = np.maximum(0.0, reduce_s - window * layers_backward_s)
    optimizer_s = trains * np.asarray(
        compute.optimizer_step_s(shared, plan.dp * plan.cp, plan.zero, gpu, assumptions)
        + compute.optimizer_step_s(own, plan.tp * plan.cp * plan.dp / plan.ep, plan.zero, gpu, assumptions)
    )
    ends = played.last_backward_end_s + exposed_reduce_s + optimizer_s
    total_s = assumptions.step_overhead_s + exposed_gather_s + float(ends.max())

    # Where the time goes is told for the stage that works longest; the others wait for it.
    busy = int(np.argmax(micro_batches * (forward_s + backward_s).sum(axis=1)))

    def cause(name: str) -> float:
        each = (
            float(split[kind][busy].sum() * (getattr(passes[kind][0], name) + getattr(passes[kind][1], name)))
            for kind in split
        )
        return micro_batches * sum(each)

    parts = {
        "compute": cause("compute_s"),
        "attention": cause("attention_s"),
        "recompute": cause("recompute_s"),
        "embedding and head": micro_batches * ((busy == 0) * sum(embed_s) + (busy == plan.pp - 1) * sum(head_s)),
        "tensor-parallel communication": cause("tensor_s"),
        "context-parallel communication": cause("context_s"),
        "expert-parallel communication": cause("expert_s"),
        "sharded weights and gradients": cause("sharding_s"),
        "waiting for the host": cause("host_s"),
        "pipeline bubble and transfers": 0.0,
        "data-parallel gather": exposed_gather_s,
        "data-parallel reduction": float(exposed_reduce_s[busy]),
        "optimizer": float(optimizer_s[busy]),
        "fixed overhead": assumptions.step_overhead_s,
    }
    idle_s = max(0.0, total_s - sum(parts.values()))
    parts["pipeline bubble and transfers"] = idle_s
    return StepSeconds(parts, total_s, idle_s / total_s)


def _layers_of(memory: TrainingMemory, kind: Kind, plan: Plan) -> Floats:
    """Layers of a kind in each chunk of each stage."""
    return np.asarray(stages.layers_of_kind(memory.model, kind, plan.pp, plan.virtual_stages), dtype=np.float64)
