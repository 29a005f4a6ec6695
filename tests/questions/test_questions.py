"""Questions that practitioners asked in public trackers, with the answer that a right tool must give.

Each test names its case by number and thread. Plans, sizes and reported figures are those of the threads.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from codesign.cost import architecture, legality, memory, stages
from codesign.cost.legality import PROFILES, Case
from codesign.cost.memory import TrainingMemory
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Model, MultiLatent, model_named

ASSUMPTIONS = Assumptions.model_construct(
    weight_bytes=2.0,
    gradient_bytes=4.0,
    optimizer_bytes=12.0,
    memory_reserved_bytes=3e9,
    memory_fragmentation=0.05,
)
BAND = 0.05
LLAMA_3_8B = model_named("llama-3-8b")
LLAMA_70B = model_named("llama-2-70b")
MEGATRON = PROFILES["megatron"]


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "tp": 1,
        "cp": 1,
        "ep": 1,
        "pp": 1,
        "dp": 1,
        "virtual_stages": 1,
        "micro_batch": 1,
        "recompute": "none",
        "zero": 0,
    } | changes


def with_layers(layers: int) -> Case:
    return Case(LLAMA_70B.model_copy(update={"layers": layers}), 4096, 1024, MEGATRON)


def legal_tp(case: Case) -> list[int]:
    every = np.arange(1, 65)
    rules = [legality.rule("attention heads"), legality.rule("key and value heads")]
    return [int(t) for t in every[np.all([legality.holds(rule, case, {"tp": every}) for rule in rules], axis=0)]]


# --------------------------------------------------------------------------------------- A. what divides what


def test_q01_thirty_layers_on_four_stages_are_all_placed() -> None:
    """NVIDIA/Megatron-LM#1304: 7+7+7+7 layers were built and two lost."""
    assert stages.layers_of_stages(30, 4) == ((7,), (8,), (8,), (7,))
    assert set(legality.uneven_splits(30, 4)) >= {(8, 7), (7, 8)}
    even = [p for p in range(1, 31) if 30 % p == 0]
    assert even == [1, 2, 3, 5, 6, 10, 15, 30]
    assert all(set(map(sum, stages.layers_of_stages(30, p))) == {30 // p} for p in even)


def test_q03_forty_layers_on_sixteen_stages_are_refused() -> None:
    """NVIDIA/Megatron-LM#1303: 32 layers were built of a GPT-3 13B with 40."""
    case = with_layers(40)
    (violation,) = legality.check(case, plan(pp=16))
    assert violation.rule == "layer split"
    assert "40 layers cannot be placed on pp 16" in violation.message
    # the mend by explicit counts: 6 + 14 x 2 + 6
    assert "6 on first and last stage and 2 on the others" in violation.message
    assert [p for p in (8, 10) if p in violation.legal["pp"]] == [8, 10]
    # 16 GPUs: 8 stages times two ways of tensor or data parallelism
    for rest in ({"tp": 2}, {"dp": 2}):
        assert legality.legal(replace(case, gpus=16), plan(pp=8, **rest))


def test_q04_the_owners_split_of_46_layers() -> None:
    """modelscope/ms-swift#5737, NVIDIA-NeMo/Megatron-Bridge#5551: the ends are lighter."""
    assert stages.layers_of_stages(46, 4) == ((11,), (12,), (12,), (11,))
    assert stages.layers_of_stages(92, 8) == ((10,), *(((12,),) * 6), (10,))
    assert (10, 12) in legality.uneven_splits(92, 8)


@pytest.mark.parametrize("layers", [61, 27])
def test_q06_odd_numbers_of_layers_are_placed_once(layers: int) -> None:
    """pytorch/torchtitan#963: the split dropped the remainder."""
    placed = 0
    for pp in range(1, layers + 1):
        if stages.split_is_legal(layers, pp):
            placed += 1
            assert sum(map(sum, stages.layers_of_stages(layers, pp))) == layers
        else:
            assert legality.check(with_layers(layers), plan(pp=pp))[0].rule == "layer split"
    assert placed >= 2


def test_q07_two_key_and_value_heads() -> None:
    """pytorch/torchtitan#2577; vllm#26876 replicates; latent attention is exempt."""
    case = Case(LLAMA_70B.model_copy(update={"kv_heads": 2}), 4096, 64, PROFILES["torchtitan"])
    assert legal_tp(case) == [1, 2]
    (violation,) = legality.check(case, plan(tp=4))
    assert "tp 4 does not divide the 2 key and value heads" in violation.message
    replicating = replace(case, profile=replace(case.profile, replicates_kv_heads=True))
    assert legal_tp(replicating) == [1, 2, 4, 8, 16, 32, 64]
    latent = MultiLatent(q_rank=1536, kv_rank=512, nope_size=128, rope_size=64, value_size=128)
    assert 4 in legal_tp(replace(case, model=case.model.model_copy(update={"multi_latent": latent})))


def test_q08_twenty_eight_heads() -> None:
    """THU-KEG/AdaptThink#1: Qwen2-7B, 28 heads, 4 of keys and values."""
    model = LLAMA_3_8B.model_copy(
        update={"name": "qwen2-7b", "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn_hidden": 18944}
    )
    case = Case(model, 4096, 64, MEGATRON)
    heads = legality.rule("attention heads")
    assert legality.legal_values(heads, case, plan(tp=8), "tp") == (1, 2, 4, 7, 14, 28)
    assert legal_tp(case) == [1, 2, 4]
    assert "attention heads" in {violation.rule for violation in legality.check(case, plan(tp=8))}


def test_q12_padding_as_the_run_itself_printed_it() -> None:
    """bigscience logs: 50257 padded to 50688, 431 dummy tokens, at tensor parallel 4."""
    padded = architecture.padded_vocabulary(50257, 4)
    assert padded == 50688
    assert padded - 50257 == 431


def test_q13_a_vocabulary_of_twice_a_prime() -> None:
    """vllm#578: 49954 = 2 x 24977 as it is; padded to a multiple of 256 it takes sixteen ways."""
    model = LLAMA_70B.model_copy(update={"vocabulary": 49954})
    exact = Case(model, 4096, 64, replace(MEGATRON, vocabulary_multiple=None))
    divides = legality.holds(legality.rule("vocabulary"), exact, {"tp": np.arange(1, 17)})
    assert list(np.flatnonzero(divides) + 1) == [1, 2]
    assert architecture.padded_vocabulary(49954, 1, 256) == 50176
    assert 50176 % 16 == 0
    assert legality.holds(legality.rule("vocabulary"), replace(exact, profile=MEGATRON), {"tp": 16})


@pytest.mark.parametrize(("cp", "tp", "multiple"), [(2, 8, 16), (4, 1, 8), (2, 3, 12)])
def test_q14_sequence_multiples(cp: int, tp: int, multiple: int) -> None:
    """NVIDIA-NeMo/RL#3563: cp x lcm(2, tp), neither more nor less."""
    assert legality.sequence_multiple(tp, cp) == multiple


# --------------------------------------------------------------------------------- B. ranks, batches, experts


def test_q15_tensor_8_times_pipeline_2_are_sixteen_gpus() -> None:
    """NVIDIA/Megatron-LM#1000: reported on eight."""
    case = Case(LLAMA_70B, 4096, 16, MEGATRON, gpus=8)
    reported = plan(tp=8, pp=2)
    assert legality.world(reported) == 16
    (violation,) = legality.check(case, reported)
    assert "tp 8 * cp 1 * pp 2 * dp 1 = 16 ranks, but there are 8 GPUs" in violation.message
    assert legality.legal(replace(case, gpus=16), reported)


def test_q17_expert_groups_are_bounded_by_the_stage_not_by_data_parallelism() -> None:
    """NVIDIA/Megatron-LM#5958: 32 GPUs, cp 16, dp 2: ep 32 runs."""
    model = LLAMA_70B.model_copy(update={"name": "qwen-122b", "experts": 256, "top_k": 8, "expert_ffn_hidden": 1024})
    case = Case(model, 8192, 64, MEGATRON, gpus=32)
    for ep, copies in [(16, 2), (32, 1)]:
        chosen = plan(cp=16, dp=2, ep=ep)
        assert legality.legal(case, chosen)
        assert legality.expert_data_parallel(MEGATRON, chosen) == copies
    assert [v.rule for v in legality.check(case, plan(cp=16, dp=2, ep=64))] == ["expert groups"]


def test_q18_the_batch_that_seven_ranks_cannot_make() -> None:
    """OpenRLHF#346, bigcode starcoder#77: 256 is not 2 x 18 x 7, 64 is not 4 x 8 x 1."""
    assert legality.nearest_legal_batches(256, 7, 2) == (252, 266)
    (violation,) = legality.check(Case(LLAMA_70B, 4096, 256, PROFILES["deepspeed"]), plan(dp=7, micro_batch=2))
    assert violation.rule == "global batch"
    assert "18.29" in violation.message
    assert "252, 266" in violation.message
    assert 8 in violation.legal["dp"]
    assert legality.micro_batches(256, 8, 2) == 16
    assert legality.micro_batches(64, 1, 4) == 16  # not 8


def test_q19_when_the_pipeline_is_first_full() -> None:
    """bigscience#70: 12 stages, micro-batch 2: at 384 with 16 data-parallel ranks, at 192 with 8."""
    assert legality.batch_that_fills_the_pipeline(12, 16, 2) == 384
    assert legality.batch_that_fills_the_pipeline(12, 8, 2) == 192


# ---------------------------------------------------------------------------------------- C. fits or does not


def least_bytes(model: Model, gpus: int, length: int, batch: int) -> float:
    """The fullest GPU of the most frugal legal plan."""
    case = Case(model, length, batch, MEGATRON, gpus=gpus)
    degrees = [d for d in (1, 2, 4, 8, 16, 32) if d <= gpus]
    names = ("tp", "pp", "dp", "zero")
    rows = [
        row
        for row in product((1, 2, 4, 8), degrees, degrees, (0, 1, 2, 3))
        if row[0] * row[1] * row[2] == gpus and legality.legal(case, plan(**dict(zip(names, row, strict=True))))
    ]
    tp, pp, dp, zero = (np.array(column) for column in zip(*rows, strict=True))
    full = plan(tp=tp, pp=pp, dp=dp, zero=zero, recompute="full")
    return float(np.min(TrainingMemory(model, length, batch, ASSUMPTIONS).worst(full)))


def test_q20_seventy_billion_parameters_on_80_gb() -> None:
    """epfLLM/Megatron-LLM#6, #52: not on 8, at the edge or below on 16, on 32."""
    eight, sixteen, thirty_two = (memory.verdict(least_bytes(LLAMA_70B, n, 4096, 64), 80e9, BAND) for n in (8, 16, 32))
    assert eight == memory.EXCEEDS
    assert sixteen != memory.FITS
    assert thirty_two == memory.FITS
    # whatever the plan: 16 bytes and more for each of 69e9 parameters against 8 x 80 GB
    assert 16 * architecture.total_parameters(LLAMA_70B) > 8 * 80e9


def test_q22_more_virtual_stages_hold_less() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#3107: 5 virtual stages fail now and then, 10 pass."""
    model = LLAMA_70B.model_copy(update={"vocabulary": 128256})
    held = stages.layers_in_flight(model, 4, [1, 5, 10], 16, stage=0)
    np.testing.assert_allclose(held / held[0], [1, 1.15, 1.075])
    case = TrainingMemory(model, 4096, 32, ASSUMPTIONS, precision="fp8")
    five, ten = (case.worst(plan(tp=4, pp=4, dp=2, virtual_stages=v, zero=1)) for v in (5, 10))
    assert ten < five


def test_q25_the_end_stages_are_the_fullest() -> None:
    """deepspeedai/DeepSpeed#1378: one layer a stage; first 10,824 MB, middle 8,041, last 10,981.

    The thread gives no sizes, so only the order is asked: both ends above the middle, where there is one
    micro-batch.
    """
    model = LLAMA_3_8B.model_copy(update={"layers": 8, "vocabulary": 50257})
    by_stage = TrainingMemory(model, 1024, 1, ASSUMPTIONS).by_stage(plan(pp=8))
    total = sum(by_stage.values())
    assert set(map(sum, stages.layers_of_stages(8, 8))) == {1}
    assert total[0] > 1.1 * total[3]
    assert total[-1] > 1.1 * total[3]


def test_q26_states_are_never_below_an_equal_share() -> None:
    """deepspeedai/DeepSpeed#6796: an autotuner divided by the shards and again by tensor parallelism."""
    bare = ASSUMPTIONS.model_copy(update={"memory_reserved_bytes": 0.0, "memory_fragmentation": 0.0})
    mix = [
        np.array(column) for column in zip(*product((1, 2, 8), (1, 2), (1, 2, 8), (1, 4), (0, 1, 2, 3)), strict=True)
    ]
    tp, cp, pp, dp, zero = mix
    case = TrainingMemory(LLAMA_3_8B, 8192, 64, bare)
    states = ("weights", "gradients", "optimizer")
    chosen = plan(tp=tp, cp=cp, pp=pp, dp=dp, zero=zero)
    by_stage = [case.by_part(chosen, stage) for stage in (0, 1, -1)]
    worst = np.max([sum(found[name] for name in states) for found in by_stage], axis=0)
    share = 18 * architecture.total_parameters(LLAMA_3_8B) / (tp * cp * pp * dp)
    assert np.all(worst >= share * (1 - 1e-12))


def test_q27_memory_by_all_experts_and_compute_by_the_active() -> None:
    """AlexsJones/llmfit#230, #474: judged by active parameters memory came out at less than half."""
    model = LLAMA_3_8B.model_copy(update={"experts": 64, "top_k": 4, "expert_ffn_hidden": 1536})
    bare = ASSUMPTIONS.model_copy(update={"memory_reserved_bytes": 0.0, "memory_fragmentation": 0.0})
    found = TrainingMemory(model, 4096, 1, bare).by_part(plan(), 0)
    assert found["weights"] + found["expert weights"] == 2 * architecture.total_parameters(model)
    twice = model.model_copy(update={"experts": 128})
    router = 2 * 32 * 4096 * 64
    assert (
        architecture.forward_flops_per_token(twice, 4096) - architecture.forward_flops_per_token(model, 4096) == router
    )


def test_q29_context_parallelism_does_not_shard_states() -> None:
    """pytorch/torchtitan#685: Llama 3 8B, 8 H100, cp 8: out of memory; sharded over the group it runs."""
    case = TrainingMemory(LLAMA_3_8B, 8192, 8, ASSUMPTIONS, vocabulary_multiple=1)
    replicated = case.worst(plan(cp=8))
    assert memory.verdict(replicated, 80e9, BAND) == memory.EXCEEDS
    states = sum(case.by_part(plan(cp=8), 0)[name] for name in ("weights", "gradients", "optimizer"))
    assert 128e9 < states / 1.05 < 145e9
    assert memory.verdict(case.worst(plan(cp=8, zero=3)), 80e9, BAND) == memory.FITS
