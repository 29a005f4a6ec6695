"""Traffic and time of mixtures of experts, older software, narrow formats: worked out by hand, and what must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import architecture, chains, collectives, compute, stages
from codesign.cost.collectives import TierRates
from codesign.cost.memory import training_memory
from codesign.design.placement import rank_map
from codesign.spec.hardware import Gpu
from codesign.spec.limits import Assumptions
from codesign.spec.stated import record
from codesign.spec.workload import Workload, model_named

H100 = Gpu.model_validate(record("gpus", "h100-sxm-80"))
GPT3 = model_named("gpt3-175b")
DEEPSEEK = model_named("deepseek-v3")


def assumptions(**changed: Any) -> Assumptions:
    return Assumptions.model_validate(record("assumptions", "default") | changed)


# ------------------------------------------------------------------------------------------------- all-to-all


def test_copies_by_hand() -> None:
    # one domain of 8, top 2: each copy leaves its GPU with 7/8
    assert collectives.exchange_copies((8, 1, 1), 2) == pytest.approx((1.75, 0.0, 0.0))
    # 4 domains in one leaf group, top 8: 4 (1 - (3/4)^8) = 3.6 domains met, 3/4 of them foreign
    inside, beside, beyond = collectives.exchange_copies((8, 4, 1), 8)
    assert inside == pytest.approx(7.0)
    assert beside == pytest.approx(4 * (1 - 0.75**8) * 0.75)
    assert beyond == 0.0
    # 2 leaf groups of 2 domains: of 3 foreign domains 1 is near
    _, near, far = collectives.exchange_copies((8, 2, 2), 8)
    assert near * 2 == pytest.approx(far)


@given(domains=st.integers(1, 8), top_k=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_copies_are_the_mean_of_random_routing(domains: int, top_k: int, seed: int) -> None:
    """Tokens that draw their experts' domains at random meet as many foreign ones."""
    draws = np.random.default_rng(seed).integers(0, domains, size=(4000, top_k))
    foreign = np.mean([len(set(row.tolist()) - {0}) for row in draws])
    _, beside, beyond = collectives.exchange_copies((4, domains, 1), top_k)
    assert beside + beyond == pytest.approx(foreign, abs=0.12)


def test_an_exchange_by_hand() -> None:
    # 1 MB of tokens, 1.75 copies at 1e-12 s/byte, 7 messages of 2 us
    rates = TierRates((1e-12, 1e-11, 1e-11), (2e-6, 5e-6, 5e-6))
    assert collectives.exchange_s(1e6, (8, 1, 1), 2, rates) == pytest.approx(1.75e6 * 1e-12 + 14e-6)
    assert collectives.exchange_s(1e6, (1, 1, 1), 2, rates) == 0.0


@pytest.mark.parametrize("name", ["mixtral", "expert-tensor"])
def test_expert_groups_of_the_map_and_of_the_tables(instances: Any, name: str) -> None:
    """The factors that the tables take from layouts are those that the explicit map has."""
    case = instances.case(name, 150, seed=31)
    tables, space = case.model.tables, case.model.space
    found = tables._expert_factors
    seen = set()
    for design in case.designs:
        plan, where = design.plan, design.placement
        layouts = (space[f"{d}_layout"].code(where.layout(d)) for d in ("tp", "cp", "dp"))
        at = (*layouts, space["ep"].code(plan.ep), space["expert_tp"].code(plan.expert_tp))
        if not found["whole"][at]:
            continue
        cut, expert, same = rank_map(plan, where).expert_spans(plan.ep, plan.expert_tp)
        assert tuple(int(tier[at]) for tier in found["cut"]) == cut
        assert tuple(int(tier[at]) for tier in found["inner"]) == expert
        assert tuple(int(tier[at]) for tier in found["outer"]) == same
        assert int(np.prod(expert)) == plan.ep
        assert int(np.prod(cut)) == plan.expert_tp
        assert int(np.prod([cut, expert, same])) == plan.tp * plan.cp * plan.dp
        seen.add((cut, expert))
    assert len(seen) > 4


def test_active_and_total_parameters_of_a_mixture() -> None:
    """Q27: memory by all experts, compute by the active ones."""
    workload = Workload(model=model_named("mixtral-8x7b"), sequence_length=4096, global_batch=8)
    plan = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "virtual_stages", "micro_batch"), 1)
    parts = training_memory(workload, assumptions(), 128).by_part(plan | {"recompute": "none", "zero": 0}, 0)
    weights = float(parts["weights"] + parts["expert weights"]) / 1.05
    assert weights == pytest.approx(2 * 46.7e9, rel=0.01)
    active = architecture.active_parameters(workload.model)
    assert active == pytest.approx(12.9e9, rel=0.01)


# ---------------------------------------------------------------------------------- software, formats, windows


def test_scores_in_memory_by_hand() -> None:
    """175B on tp 8, one sequence of 2,048: 12 heads x 2048^2 scores, 13 bytes each; products over the full square."""
    found = compute.layer_forward(GPT3, 2048, 1, 8, 1, H100, "bf16", attention="unfused").attention_s
    scores = 12 * 2048**2
    fit = H100.efficiency
    flops = 4 * scores * 128 / (989e12 * fit.matmul_ceiling)
    moved = 13 * scores / (3.35e12 * fit.memory_ceiling)
    assert float(found) == pytest.approx(flops + moved)


def test_narrow_heads_go_to_the_vector_units() -> None:
    odd = GPT3.model_copy(update={"heads": 128, "kv_heads": 128, "head_size": 108, "hidden": 13824})
    even = odd.model_copy(update={"heads": 108, "kv_heads": 108, "head_size": 128})
    slow, fast = (
        float(compute.layer_forward(m, 2048, 1, 4, 1, H100, "bf16", attention="unfused").attention_s)
        for m in (odd, even)
    )
    assert slow > 2 * fast


def test_without_sequence_parallelism_norms_are_not_shared() -> None:
    shared, whole = (
        float(compute.layer_forward(GPT3, 2048, 1, 8, 1, H100, "bf16", sequence_parallel=sp).elementwise_s)
        for sp in (True, False)
    )
    rate = 3.35e12 * H100.efficiency.memory_ceiling
    # two norms (2 passes) and two residuals (3 passes) of 12,288 elements of 2 bytes, 7/8 of them done in vain
    assert whole - shared == pytest.approx(2 * (2 + 3) * 2 * 12288 * 2048 * 7 / 8 / rate)


@pytest.mark.parametrize(("precision", "bytes_each"), [("bf16", 0.0), ("fp8", 4.0), ("mxfp8", 4.0625)])
def test_narrowing_costs_its_bytes(precision: Any, bytes_each: float) -> None:
    inputs = sum(matrix.inputs for matrix in architecture.projections(GPT3))
    more = compute.elementwise_bytes_per_token(GPT3, "dense", precision) - compute.elementwise_bytes_per_token(GPT3)
    assert more == pytest.approx(bytes_each * inputs)


def test_a_format_without_a_figure_takes_that_of_the_next_wider_one() -> None:
    fit = H100.efficiency.model_copy(update={"matmul_ceiling_fp8": 0.7, "matmul_ceiling_mxfp8": None})
    assert fit.ceiling("mxfp8") == 0.7
    assert fit.ceiling("nvfp4") == 0.7
    assert fit.ceiling("bf16") == fit.matmul_ceiling
    assert H100.peak("mxfp8") == H100.peak("fp8")
    assert not H100.computes("nvfp4")


def test_a_clock_that_is_not_held_slows_all_arithmetic() -> None:
    slow = H100.model_copy(update={"efficiency": H100.efficiency.model_copy(update={"sustained_clock": 0.5})})
    one, other = (compute.layer_forward(GPT3, 2048, 4, 1, 1, g, "bf16") for g in (H100, slow))
    assert float(other.matmul_s) == pytest.approx(2 * float(one.matmul_s))
    assert float(other.elementwise_s) == float(one.elementwise_s)
    assert slow.peak("bf16") == H100.peak("bf16")  # utilisation is still counted over what is printed on the part


def test_frozen_weights_have_no_gradients() -> None:
    forward = compute.layer_forward(GPT3, 2048, 1, 1, 1, H100, "bf16")
    full, lora = (compute.layer_backward(forward, "flash", tuning) for tuning in ("full", "lora"))
    assert float(full.matmul_s) == 2 * float(lora.matmul_s)
    assert float(full.attention_s) == float(lora.attention_s)


def test_the_host_and_its_skew() -> None:
    constants = assumptions(host_layer_s=1e-3, host_skew=0.5, host_mixture_s=2e-3)
    assert float(compute.host_forward_s(constants, "dense", 1)) == 1e-3
    assert float(compute.host_forward_s(constants, "dense", 8)) == pytest.approx(1.5e-3)
    assert float(compute.host_forward_s(constants, "dense", 16)) == pytest.approx(1.5e-3)
    assert float(compute.host_forward_s(constants, "mixture", 1)) == pytest.approx(3e-3)


def test_a_window_bounds_what_is_seen() -> None:
    """gpt-oss: half of the layers look at 128 tokens; at 4,096 the others see 2,048 in the mean."""
    model = model_named("gpt-oss-120b")
    plain = model.model_copy(update={"windowed_layers": 0, "attention_window": 0})
    share = float(
        architecture.attention_flops_per_token(model, 4096) / architecture.attention_flops_per_token(plain, 4096)
    )
    assert share == pytest.approx((2048 + 128) / 2 / 2048)
    short = architecture.attention_flops_per_token(model, 64) / architecture.attention_flops_per_token(plain, 64)
    assert float(short) == 1.0  # a window that is wider than the sequence


# ------------------------------------------------------------------------------------------- layers of two kinds


@given(
    layers=st.integers(4, 70),
    dense=st.integers(1, 3),
    p=st.integers(1, 8),
    v=st.integers(1, 4),
    groups=st.integers(1, 4),
)
@settings(max_examples=150)
def test_chains_of_two_kinds_add_up_to_those_of_one(layers: int, dense: int, p: int, v: int, groups: int) -> None:
    """A chain passes as many layers whatever their kinds."""
    mixed = DEEPSEEK.model_copy(update={"layers": layers, "dense_layers": dense})
    plain = GPT3.model_copy(update={"layers": layers})
    if not stages.model_splits(mixed, p, v) or (v > 1 and p == 1):
        return
    m = groups * p
    for name in chains.NAMES[:2]:
        of_both = sum(float(chains.layers_of_chain(mixed, p, v, m, name, kind)) for kind in ("dense", "mixture"))
        assert of_both == pytest.approx(float(chains.layers_of_chain(plain, p, v, m, name, "dense")))


def test_splits_of_published_mixtures() -> None:
    """61 layers on 16 stages: embedding counts as one layer, loss and the second prediction as two."""
    split = stages.layers_of_stages(61, 16)
    assert [sum(stage) for stage in split] == [3, *([4] * 14), 2]
    kinds = stages.dense_layers_of_stages(DEEPSEEK, 16)
    assert sum(map(sum, kinds)) == 3
