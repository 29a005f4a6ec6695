"""Seconds of one step of an explicit design. Floor 4. In: plan, rank map, server, network. Out: seconds by cause.

Layer times come from `codesign.cost`; the groups' spans from the rank map; the pipeline is played event by event, each
stage with its own layers, the first with the embedding, the last with the head. Before it, every stage gathers what
weights it needs beside its first forward; after it, every stage reduces its gradients beside its last backward and
runs its optimizer. The step ends with the last stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture, collectives, compute, recompute, stages
from codesign.cost.architecture import Kind
from codesign.cost.collectives import TierRates
from codesign.cost.communication import activation_message_bytes, ring_message_bytes
from codesign.cost.memory import TrainingMemory
from codesign.cost.step import (
    EXCHANGES_A_PASS,
    EXCHANGES_AGAIN,
    GATHERS_A_PASS,
    GATHERS_AGAIN,
    HOST_AGAIN,
    RING_BACKWARD_TO_FORWARD,
)
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
    expert_tensor: tuple[int, int, int]
    expert: tuple[int, int, int]
    expert_data: tuple[int, int, int]
    boundary_tiers: tuple[int, ...]


def spans(plan: Plan, ranks: RankMap) -> Spans:
    """Read the groups of a plan off the rank map."""
    expert_tensor, expert, expert_data = ranks.expert_spans(plan.ep, plan.expert_tp)
    return Spans(
        tensor=ranks.spans(("tp",)),
        context=ranks.spans(("cp",)),
        data=ranks.spans(("dp", "cp")),
        expert_tensor=expert_tensor,
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
    """Forward and backward of one layer of a kind for one micro-batch on one rank.

    With `full:N` of a layer that is not one of the N; of one that is, under `full`.
    """
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
        expert_tp=plan.expert_tp,
        imbalance=assumptions.expert_imbalance,
        attention=workload.attention,
        sequence_parallel=workload.sequence_parallel,
    )
    backward = compute.layer_backward(forward, workload.attention, workload.tuning)
    again_kind = str(recompute.of_other_layers(plan.recompute))
    again = compute.layer_recompute(forward, again_kind)
    exposed = 1.0 - assumptions.overlap_tensor_parallel
    launch_s = assumptions.collective_launch_s
    activations = activation_message_bytes(workload) * plan.micro_batch / plan.cp
    gather_s = exposed * (
        (
            collectives.gather_s(activations, groups.tensor, rates)
            if workload.sequence_parallel
            else 0.5 * collectives.all_reduce_s(activations, groups.tensor, rates)
        )
        + launch_s * (plan.tp > 1)
    )
    share = plan.micro_batch / (plan.cp * plan.tp)
    ring_s = context_gather_s = 0.0
    if plan.context_exchange == "ring":
        ring_s = collectives.ring_s(ring_message_bytes(workload) * share, groups.context, rates)
    else:
        whole_bytes = ring_message_bytes(workload) * plan.micro_batch / plan.tp
        context_gather_s = collectives.gather_s(whole_bytes, groups.context, rates)
    exchange_s = 0.0
    if kind == "mixture":
        message = assumptions.expert_imbalance * activation_message_bytes(workload) * share
        exchange_s = collectives.exchange_s(message, groups.expert, model.top_k, rates) + launch_s * (plan.ep > 1)
        copies = model.top_k * plan.expert_tp
        exchange_s += collectives.gather_s(message * copies, groups.expert_tensor, rates)
        exchange_s += launch_s * (plan.expert_tp > 1)
    weights_s, gradients_s = _sharding(workload, plan, groups, rates, assumptions, kind)
    core_again = float(again_kind in ("full", "selective"))

    def one(
        seconds: compute.LayerSeconds,
        again_s: float,
        core_again_s: float,
        passes: float,
        exchanges: float,
        rings: float,
        host_s: float,
        beside_s: float,
    ) -> Layer:
        dense_s = float(seconds.total_s - seconds.attention_s)
        core_s = float(seconds.attention_s)
        context_s = max(0.0, rings * ring_s - core_s - core_again_s) + rings * context_gather_s
        tensor_s = passes * GATHERS_A_PASS * gather_s
        inner_s = dense_s + core_s + again_s + core_again_s + context_s + tensor_s
        # No more of an exchange can hide than there is work to hide it.
        whole_s = exchanges * EXCHANGES_A_PASS * exchange_s
        expert_s = max((1.0 - assumptions.overlap_expert_parallel) * whole_s, whole_s - inner_s)
        own_s = inner_s + expert_s
        idle_s = max(0.0, host_s - own_s)
        sharding_s = max(0.0, beside_s - own_s - idle_s)
        return Layer(dense_s, core_s, again_s + core_again_s, tensor_s, context_s, expert_s, idle_s, sharding_s)

    host_s = float(compute.host_forward_s(assumptions, kind, plan.tp))
    return (
        one(forward, 0.0, 0.0, 1.0, 1.0, 1.0, host_s, weights_s),
        one(
            backward,
            float(again.total_s - again.attention_s),
            float(again.attention_s),
            1.0 + GATHERS_AGAIN.get(again_kind, 0.0),
            1.0 + EXCHANGES_AGAIN.get(again_kind, 0.0),
            RING_BACKWARD_TO_FORWARD + core_again,
            host_s * (compute.BACKWARD_TO_FORWARD + HOST_AGAIN.get(again_kind, 0.0)),
            weights_s + gradients_s,
        ),
    )


def _sharding(
    workload: Workload, plan: Plan, groups: Spans, rates: TierRates, assumptions: Assumptions, kind: Kind
) -> tuple[float, float]:
    """Seconds to gather the weights and to reduce the gradients of one layer, where ZeRO does so for each of them."""
    model = workload.model
    shared = float(architecture.local_layer_parameters(model, plan.tp, kind))
    held_by = plan.ep * plan.expert_tp
    own = model.experts / held_by * architecture.expert_parameters(model) if kind == "mixture" else 0.0

    def over(element_bytes: float, *, gradients: bool) -> float:
        element_bytes /= assumptions.sharding_efficiency
        return _sharded_s(plan, element_bytes * shared, element_bytes * own, groups, rates, gradients=gradients)

    weights_s = over(assumptions.weight_bytes, gradients=False) if plan.zero == 3 else 0.0
    trains = plan.zero >= 2 and workload.tuning == "full"
    return weights_s, over(assumptions.reduced_gradient_bytes, gradients=True) if trains else 0.0


def _sharded_s(
    plan: Plan, shared_bytes: float, own_bytes: float, groups: Spans, rates: TierRates, *, gradients: bool
) -> float:
    """Gather of weights or reduction of gradients over the ranks that a state is sharded over; experts have theirs."""
    if plan.shard_within == "domain":
        return collectives.within_domain_s(shared_bytes, groups.data, rates, gradients=gradients)
    own_s = collectives.gather_s(own_bytes, groups.expert_data, rates) if own_bytes else 0.0
    return collectives.gather_s(shared_bytes, groups.data, rates) + own_s


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
    again = {kind: _again_of(memory, kind, plan) for kind in split}
    as_full = replace(plan, recompute="full")
    wholes = {
        kind: layers(workload, as_full, groups, gpu, rates, assumptions, kind)[1] if np.any(again[kind]) else backward
        for kind, (_, backward) in passes.items()
    }
    micro_batches = workload.global_batch // (plan.dp * plan.micro_batch)

    gpu = compute.with_software(gpu, assumptions)
    embed = compute.embedding_forward(model, sequence, plan.micro_batch, plan.cp, gpu)
    embed_s = float(embed.total_s), float(compute.embedding_backward(embed).total_s)
    arguments = (model, sequence, plan.micro_batch, plan.tp, plan.cp, gpu, memory.vocabulary_multiple)
    head_s = float(compute.head_forward(*arguments).total_s), float(compute.head_backward(*arguments).total_s)

    forward_s: Floats = np.asarray(sum(split[kind] * passes[kind][0].total_s for kind in split))
    backward_s: Floats = np.asarray(
        sum(
            (split[kind] - again[kind]) * passes[kind][1].total_s + again[kind] * wholes[kind].total_s for kind in split
        )
    )
    layers_forward_s, layers_backward_s = forward_s.sum(axis=1), backward_s.sum(axis=1)
    forward_s[0, 0] += embed_s[0]
    backward_s[0, 0] += embed_s[1]
    forward_s[-1, -1] += head_s[0]
    backward_s[-1, -1] += head_s[1]
    message = activation_message_bytes(workload) * plan.micro_batch / (plan.cp * plan.tp)
    transfer_s = np.array([collectives.hop_s(message, tier, rates) for tier in groups.boundary_tiers])
    put_off_s = _put_off(workload, plan, split, gpu, assumptions)
    in_line_s = backward_s if put_off_s is None else backward_s - put_off_s
    played = schedule.play(forward_s, in_line_s, transfer_s, micro_batches, put_off_s)

    every = np.arange(plan.pp)
    shared = np.broadcast_to(memory.local_parameters(plan.tp, plan.pp, plan.virtual_stages, stage=every), every.shape)
    own = np.broadcast_to(
        memory.local_expert_parameters(plan.ep * plan.expert_tp, plan.pp, plan.virtual_stages, stage=every), every.shape
    )
    trains = float(workload.tuning == "full")

    def over_groups(element_bytes: float, *, gradients: bool) -> Floats:
        return np.array(
            [
                _sharded_s(plan, element_bytes * p, element_bytes * e, groups, rates, gradients=gradients)
                for p, e in zip(shared, own, strict=True)
            ]
        )

    window = assumptions.overlap_data_parallel
    none = np.zeros(plan.pp)
    gather_s = trains * over_groups(assumptions.weight_bytes, gradients=False) if plan.zero in (1, 2) else none
    reduce_s = none
    if plan.zero == 1:
        reduce_s = trains * over_groups(assumptions.reduced_gradient_bytes, gradients=True)
    elif plan.zero == 0:
        each = assumptions.reduced_gradient_bytes
        reduce_s = trains * np.array(
            [
                collectives.all_reduce_s(each * p, groups.data, rates)
                + (collectives.all_reduce_s(each * e, groups.expert_data, rates) if e else 0.0)
                for p, e in zip(shared, own, strict=True)
            ]
        )
    exposed_gather_s = float(np.max(np.maximum(0.0, gather_s - window * layers_forward_s)))
    exposed_reduce_s = np.maximum(0.0, reduce_s - window * layers_backward_s)
    shards = groups.data[0] if plan.shard_within == "domain" else plan.dp * plan.cp
    own_shards = plan.tp * plan.cp * plan.dp / (plan.ep * plan.expert_tp)
    optimizer_s = trains * np.asarray(
        compute.optimizer_step_s(shared, shards, plan.zero, gpu, assumptions)
        + compute.optimizer_step_s(own, own_shards, plan.zero, gpu, assumptions)
    )
    ends = played.last_backward_end_s + exposed_reduce_s + optimizer_s
    total_s = assumptions.step_overhead_s + exposed_gather_s + float(ends.max())

    # Where the time goes is told for the stage that works longest; the others wait for it.
    busy = int(np.argmax(micro_batches * (forward_s + backward_s).sum(axis=1)))

    def cause(name: str) -> float:
        each = (
            float(split[kind][busy].sum() * getattr(passes[kind][0], name))
            + float((split[kind] - again[kind])[busy].sum() * getattr(passes[kind][1], name))
            + float(again[kind][busy].sum() * getattr(wholes[kind], name))
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


def _again_of(memory: TrainingMemory, kind: Kind, plan: Plan) -> Floats:
    """Of `_layers_of`, those that `full:N` runs again whole; none under `full`, where all layers are alike."""
    if not plan.recompute.startswith("full:"):
        return np.zeros((plan.pp, plan.virtual_stages))
    count = int(recompute.whole_layers(plan.recompute))
    return recompute.layers_of_kind(memory.model, kind, plan.pp, plan.virtual_stages, count)


def _put_off(
    workload: Workload, plan: Plan, split: Mapping[Kind, Floats], gpu: Gpu, assumptions: Assumptions
) -> Floats | None:
    """Seconds of each chunk's gradients of weights, where the schedule computes them apart; head and embedding do not.

    Shape (pp, virtual stages).
    """
    if plan.schedule != "zb-h1":
        return None
    found = np.zeros((plan.pp, plan.virtual_stages))
    for kind, count in split.items():
        forward = compute.layer_forward(
            workload.model,
            workload.sequence_length,
            plan.micro_batch,
            plan.tp,
            plan.cp,
            gpu,
            workload.precision,
            kind=kind,
            ep=plan.ep,
            expert_tp=plan.expert_tp,
            imbalance=assumptions.expert_imbalance,
            attention=workload.attention,
            sequence_parallel=workload.sequence_parallel,
        )
        found = found + count * float(compute.weight_gradients_s(forward, workload.tuning))
    return found


def _layers_of(memory: TrainingMemory, kind: Kind, plan: Plan) -> Floats:
    """Layers of a kind in each chunk of each stage."""
    return np.asarray(stages.layers_of_kind(memory.model, kind, plan.pp, plan.virtual_stages), dtype=np.float64)
