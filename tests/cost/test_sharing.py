"""States shared inside a domain, contexts gathered, experts cut: bytes, seconds and refusals, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codesign.cost import collectives, communication, legality
from codesign.cost.collectives import TierRates
from codesign.cost.legality import PROFILES, Case
from codesign.cost.memory import TrainingMemory
from codesign.design import Layout
from codesign.design.placement import rank_map
from codesign.exact import Judge
from codesign.exact.step import layers, spans
from codesign.spec.limits import Assumptions
from codesign.spec.workload import model_named

LLAMA_3_8B = model_named("llama-3-8b")
MIXTRAL = model_named("mixtral-8x7b")
BARE = Assumptions.model_construct(
    weight_bytes=2.0, gradient_bytes=4.0, optimizer_bytes=12.0, memory_reserved_bytes=0.0, memory_fragmentation=0.0
)
ONE = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "virtual_stages", "micro_batch"), 1) | {"recompute": "none"}
RATES = TierRates((1e-12, 2e-11, 4e-11), (1e-6, 5e-6, 9e-6))


# ----------------------------------------------------------------------------------------- sharded inside a domain


def test_bytes_of_states_in_a_domain() -> None:
    """32 ranks, 8 in each domain: what is sharded is cut by 8 instead of 32, weights from ZeRO 3 on."""
    memory = TrainingMemory(LLAMA_3_8B, 8192, 64, BARE, within_domain=True)
    plan = ONE | {"dp": 32, "dp_layout": 8, "cp_layout": 1, "shard_within": "domain"}
    parameters = LLAMA_3_8B_PARAMETERS
    for zero, cut in ((1, ("optimizer",)), (2, ("optimizer", "gradients")), (3, ("optimizer", "gradients", "weights"))):
        found = memory.by_part(plan | {"zero": zero}, 0)
        for name, each in (("weights", 2.0), ("gradients", 4.0), ("optimizer", 12.0)):
            assert found[name] == pytest.approx(each * parameters / (8 if name in cut else 1), rel=1e-6), (zero, name)
        spread = memory.by_part(plan | {"zero": zero, "shard_within": "group"}, 0)
        for name in cut:
            assert found[name] == pytest.approx(4 * spread[name], rel=1e-12)


# 8.03e9: embedding and head of 128,256 x 4,096, 32 layers of 4,096 x (4,096 + 2 x 1,024 + 4,096 + 3 x 14,336) + norms
LLAMA_3_8B_PARAMETERS = 2 * 128256 * 4096 + 32 * (4096 * (4096 + 2048 + 4096 + 43008) + 2 * 4096) + 4096


def test_a_domain_with_contexts_in_it() -> None:
    """Contexts share states as data-parallel ranks do: 2 x 4 ranks in the domain cut by 8."""
    memory = TrainingMemory(LLAMA_3_8B, 8192, 64, BARE, within_domain=True)
    plan = ONE | {"dp": 16, "cp": 4, "dp_layout": 2, "cp_layout": 4, "shard_within": "domain", "zero": 3}
    assert memory.by_part(plan, 0)["weights"] == pytest.approx(2.0 * LLAMA_3_8B_PARAMETERS / 8, rel=1e-6)


def test_seconds_of_a_domain() -> None:
    """1 GB over 8 x 4 x 2: weights cross the domain only; gradients of an eighth are all-reduced over the 4 x 2.

    domain: 7/8 GB x 1 ps + 7 us; leaf, twice: 3/4 of 125 MB x 20 ps + 3 x 5 us; pod, twice: 1/2 of 31.25 MB x 40 ps
    + 9 us
    """
    inside_s = 0.875e9 * 1e-12 + 7e-6
    beyond_s = (0.75 * 125e6 * 2e-11 + 15e-6) + (0.5 * 31.25e6 * 4e-11 + 9e-6)
    weights_s = collectives.within_domain_s(1e9, (8, 4, 2), RATES, gradients=False)
    gradients_s = collectives.within_domain_s(1e9, (8, 4, 2), RATES, gradients=True)
    assert weights_s == pytest.approx(inside_s, rel=1e-12)
    assert gradients_s == pytest.approx(inside_s + 2 * beyond_s, rel=1e-12)
    # one domain is the whole group: nothing differs
    alone = (8, 1, 1)
    for gradients in (False, True):
        assert collectives.within_domain_s(1e9, alone, RATES, gradients=gradients) == collectives.gather_s(
            1e9, alone, RATES
        )


# ------------------------------------------------------------------------------------------------ contexts gathered


def test_bytes_of_gathered_contexts() -> None:
    """Keys and values of one layer, 2 x 8 heads x 128 in 2 bytes for 8,192 tokens, less the quarter that is its own."""
    memory = TrainingMemory(LLAMA_3_8B, 8192, 64, BARE, gathers_context=True)
    plan = ONE | {"cp": 4, "zero": 0}
    found = memory.by_part(plan | {"context_exchange": "all-gather"}, 0)["gathered keys and values"]
    assert found == pytest.approx(0.75 * 2 * 8 * 128 * 2 * 8192, rel=1e-12)
    assert memory.by_part(plan, 0)["gathered keys and values"] == 0.0
    # two heads a rank under tp 4
    cut = memory.by_part(plan | {"tp": 4, "context_exchange": "all-gather"}, 0)["gathered keys and values"]
    assert cut == pytest.approx(found / 4, rel=1e-12)


def test_seconds_of_gathered_contexts(instances: Any) -> None:
    """Nothing hides the gather; forward once, backward twice (gathered again, gradients reduced)."""
    judge = instances.judge("blocks-8b")
    workload, gpu = judge.workload, judge.market.servers[0].server.gpu
    for seed in range(400):
        design = instances.design("blocks-8b", seed)
        if design.plan.cp > 1:
            break
    plan = replace(design.plan, context_exchange="all-gather", recompute="none")
    groups = spans(plan, rank_map(plan, design.placement))
    message = communication.ring_message_bytes(workload) * plan.micro_batch / plan.tp
    once_s = collectives.gather_s(message, groups.context, RATES)
    forward, backward = layers(workload, plan, groups, gpu, RATES, judge.instance.assumptions)
    assert forward.context_s == pytest.approx(once_s, rel=1e-12)
    assert backward.context_s == pytest.approx(2 * once_s, rel=1e-12)
    ring = layers(workload, replace(plan, context_exchange="ring"), groups, gpu, RATES, judge.instance.assumptions)
    # the ring hides beside the attention core; only what is left over shows
    assert ring[0].context_s < forward.context_s


# ------------------------------------------------------------------------------------------------------ experts cut


def test_bytes_of_cut_experts() -> None:
    """8 experts of 3 x 4,096 x 14,336 in each of 32 layers: ep 2 and expert_tp 2 leave a quarter on a rank."""
    memory = TrainingMemory(MIXTRAL, 4096, 64, BARE)
    all_of_them = 32 * 8 * 3 * 4096 * 14336
    plan = ONE | {"tp": 2, "dp": 4, "zero": 0, "ep": 2}
    for cut in (1, 2, 4):
        found = memory.by_part(plan | {"expert_tp": cut}, 0)["expert weights"]
        assert found == pytest.approx(2.0 * all_of_them / 2 / cut, rel=1e-12)
    # what ZeRO 1 leaves of the states is an equal share of all 8 ranks, however experts are cut
    for ep, cut in ((1, 1), (2, 2), (8, 1), (2, 4)):
        states = memory.by_part(plan | {"ep": ep, "expert_tp": cut, "zero": 1}, 0)["expert optimizer"]
        assert states == pytest.approx(12.0 * all_of_them / 8, rel=1e-12)


def test_groups_of_cut_experts(instances: Any) -> None:
    """16 ranks of a stage on 2 domains of 8 with tp 2: experts cut by pairs, then groups of 4 pairs, then the rest."""
    design = instances.design("expert-tensor", 0)
    plan = replace(design.plan, tp=2, cp=1, pp=1, dp=8, ep=4, expert_tp=2)
    where = replace(design.placement, tp=Layout(2, 1, 1), cp=Layout(1, 1, 1), pp=Layout(1, 1, 1), dp=Layout(4, 2, 1))
    cut, group, same = rank_map(plan, where).expert_spans(4, 2)
    assert (cut, group, same) == ((2, 1, 1), (4, 1, 1), (1, 2, 1))
    # cut by 8: a domain holds each expert once
    assert rank_map(plan, where).expert_spans(2, 8) == ((8, 1, 1), (1, 2, 1), (1, 1, 1))


# --------------------------------------------------------------------------------------------------------- refusals


def refusals(model: Any, framework: str, **changes: Any) -> dict[str, str]:
    case = Case(model, 8192, 64, PROFILES[framework])
    plan = dict.fromkeys(("tp", "cp", "ep", "pp", "virtual_stages", "micro_batch"), 1) | {"dp": 8, "zero": 1}
    return {found.rule: found.message for found in legality.check(case, plan | changes)}


@pytest.mark.parametrize(
    ("model", "framework", "changes", "rule", "said"),
    [
        (
            LLAMA_3_8B,
            "megatron",
            {"schedule": "zb-h1", "pp": 2},
            "schedule",
            "megatron has no schedule zb-h1, only 1f1b",
        ),
        (LLAMA_3_8B, "torchtitan", {"schedule": "zb-h1"}, "schedule", "but pp is 1 and virtual stages are 1"),
        (
            LLAMA_3_8B,
            "torchtitan",
            {"schedule": "zb-h1", "pp": 2, "virtual_stages": 2},
            "schedule",
            "a pipeline with one chunk a stage, but pp is 2 and virtual stages are 2 (legal schedule: 1f1b",
        ),
        (LLAMA_3_8B, "torchtitan", {"shard_within": "domain", "zero": 0}, "sharding in a domain", "nothing is sharded"),
        (MIXTRAL, "torchtitan", {"shard_within": "domain"}, "sharding in a domain", "mixtral-8x7b has experts"),
        (LLAMA_3_8B, "megatron", {"context_exchange": "all-gather"}, "context exchange", "with cp 1: there is nothing"),
        (LLAMA_3_8B, "megatron", {"expert_tp": 2}, "expert width", "has no experts, so expert_tp 2 must be 1"),
        (MIXTRAL, "megatron", {"expert_tp": 3}, "expert width", "expert_tp 3 does not divide the width 14336"),
        (MIXTRAL, "megatron", {"ep": 4, "expert_tp": 4}, "expert groups", "ep 4 * expert_tp 4 does not divide"),
    ],
)
def test_what_is_refused(model: Any, framework: str, changes: dict[str, Any], rule: str, said: str) -> None:
    found = refusals(model, framework, **changes)
    assert said in found[rule]


def test_what_is_not_refused() -> None:
    assert not refusals(LLAMA_3_8B, "torchtitan", schedule="zb-h1", pp=2, shard_within="domain")
    assert not refusals(LLAMA_3_8B, "megatron", context_exchange="all-gather", cp=2)
    assert not refusals(MIXTRAL, "megatron", ep=4, expert_tp=2)


def test_refusals_of_arrays() -> None:
    case = Case(LLAMA_3_8B, 8192, 64, PROFILES["torchtitan"])
    plan = dict.fromkeys(("tp", "cp", "ep", "virtual_stages", "micro_batch"), 1) | {"dp": 8, "zero": 1}
    found = legality.legal(case, plan | {"pp": np.array([1, 2, 1, 2]), "schedule": np.array(["1f1b", "zb-h1"] * 2)})
    assert found.tolist() == [True, True, True, True]
    found = legality.legal(case, plan | {"pp": np.array([1, 2]), "schedule": np.array(["zb-h1", "1f1b"])})
    assert found.tolist() == [False, True]


# ------------------------------------------------------------------------------------ switches that reduce on the way


def test_an_all_reduce_is_two_passes_where_no_switch_reduces() -> None:
    for layout in ((8, 4, 2), (1, 4, 1), (2, 1, 1), (1, 1, 1)):
        twice = 2 * collectives.gather_s(1e9, layout, RATES)
        assert collectives.all_reduce_s(1e9, layout, RATES) == pytest.approx(twice, rel=1e-12)


def test_an_all_reduce_through_switches_by_hand() -> None:
    """1 GB over 8 x 4: in the domain 9/8 at 80 % of 1 TB/s and 2 messages of 1 us; then an eighth once, 2 of 5 us."""
    rates = replace(RATES, in_switch=(0.8, 1.0, 1.0))
    expected_s = 1.125e9 / 0.8 * 1e-12 + 2e-6 + 0.125e9 * 2e-11 + 10e-6
    assert collectives.all_reduce_s(1e9, (8, 4, 1), rates) == pytest.approx(expected_s, rel=1e-12)
    # two ranks exchange halves faster than through the switch: 2 x 1/2 against 3/2
    alone = (2, 1, 1)
    assert collectives.all_reduce_s(1e9, alone, rates) == collectives.all_reduce_s(1e9, alone, RATES)
    assert collectives.all_reduce_s(1e9, (1, 1, 1), rates) == 0.0


def test_bus_bandwidth_in_a_node_of_h100(instances: Any) -> None:
    """Q40: 480 GB/s by NVLS against 370 by ring, where bus bandwidth is 2 (n-1)/n of the message over the time."""
    gpu = instances.judge("blocks-8b").market.servers[0].server.gpu
    per_byte = (1 / gpu.domain_bandwidth_bytes_per_s, 0.0, 0.0)
    message, layout, no_s = 1e10, (8, 1, 1), (0.0, 0.0, 0.0)
    found = {}
    for name, reached in (("ring", 0.0), ("nvls", gpu.in_switch_efficiency)):
        rates = TierRates(per_byte, no_s, (reached, 0.0, 0.0))
        found[name] = 1.75 * message / collectives.all_reduce_s(message, layout, rates)
    assert found["ring"] == pytest.approx(370e9, rel=0.01)
    assert found["nvls"] == pytest.approx(480e9, rel=0.03)


def test_what_reduces_and_when_it_is_told_to(instances: Any) -> None:
    """GPUs of the Hopper generation, InfiniBand switches; by the assumptions."""
    instance = instances.instance("blocks-8b")
    server, switch = instance.inventory[0].server, instance.inventory[0].switch
    nic = instances.judge("blocks-8b").market.networks[-1].nic
    for nvls, sharp, expected in (
        (True, False, (0.85, 0.0, 0.0)),
        (False, True, (0.0, 1.0, 1.0)),
        (True, True, (0.85, 1.0, 1.0)),
    ):
        constants = instance.assumptions.model_copy(update={"nvls": nvls, "sharp": sharp})
        assert collectives.tier_rates(server, nic, switch, 2, 1, constants).in_switch == expected
    plain = switch.model_copy(update={"in_network_reduction": False})
    constants = instance.assumptions.model_copy(update={"sharp": True})
    assert collectives.tier_rates(server, nic, plain, 2, 1, constants).in_switch == (0.85, 0.0, 0.0)


@pytest.mark.parametrize("zero", [0, 1])
def test_replicated_gradients_gain_and_shards_do_not(instances: Any, zero: int) -> None:
    def seconds(*overrides: str) -> float:
        judge = Judge(instances.instance("blocks-8b", "assumptions.overlap_data_parallel=0", *overrides))
        plan = replace(design.plan, zero=zero, recompute="none", shard_within="group")
        return judge.evaluate(replace(design, plan=plan)).workloads["pretrain"].breakdown_s["data-parallel reduction"]

    model = (instances.design("blocks-8b", seed) for seed in range(400))
    design = next(one for one in model if one.placement.dp.domain >= 4 and one.placement.dp.leaf > 1)
    off = seconds("assumptions.nvls=false", "assumptions.sharp=false")
    nvls = seconds("assumptions.nvls=true", "assumptions.sharp=false")
    both = seconds("assumptions.nvls=true", "assumptions.sharp=true")
    assert (off > nvls > both) if zero == 0 else (off == nvls == both)
