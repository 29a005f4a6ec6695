"""The same questions, asked as a user would: as an instance that is read, a design that is judged, or a solve.

`test_questions` asks the rules and formulas one by one; here the answer must come out of the tool. Each test names its
case by number and thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codesign import Limits, SpecError, parse, solve
from codesign.cost import stages
from codesign.cost.assemble import CostModel
from codesign.design import Design, Layout, Network, Placement, Plan, Purchase, StoragePurchase
from codesign.exact import evaluate
from codesign.exact.schedule import operations, play
from codesign.solve.sample import random_designs

ONE = Layout(1, 1, 1)
GPT = """{name: gpt, layers: %d, hidden: %d, heads: %d, kv_heads: %d, ffn_hidden: %d, gated: false, vocabulary: %d,
             tied_embeddings: true}"""


def text(
    model: str, servers: int = 1, server: str = "hgx-h100", more: str = "", length: int = 2048, batch: int = 64
) -> str:
    network = ", fabric: rail-optimized, switch: quantum2-qm9700" if servers > 1 else ""
    return f"""
schema: 1
name: question
workloads: [{{model: {model}, sequence_length: {length}, global_batch: {batch}{more}}}]
offers: none
inventory: [{{server: {server}, count: {servers}{network}}}]
objective: step_time
"""


def gpt(layers: int = 24, hidden: int = 2048, heads: int = 16, kv_heads: int = 0, vocabulary: int = 50257) -> str:
    return GPT % (layers, hidden, heads, kv_heads or heads, 4 * hidden, vocabulary)


def values(instance_text: str, decision: str) -> set[int]:
    """Values that some legal design has."""
    model = CostModel(parse(instance_text))
    relation = model.design_space.degrees
    return {int(value) for value in relation.values(model.space, decision)}


def refused(instance_text: str) -> str:
    with pytest.raises(SpecError) as caught:
        CostModel(parse(instance_text))
    return " ".join(str(caught.value).split())


def on_one_server(plan: Plan, server: str = "hgx-h100") -> Design:
    layouts = {d: Layout(plan.degree(d), 1, 1) for d in ("tp", "cp", "pp", "dp")}
    purchase = Purchase(server, 1, Network("none", 0, "", 1, ""), StoragePurchase("", 0), 0.0)
    return Design("pretrain", plan, Placement(**layouts), purchase)


def plan(**changes: Any) -> Plan:
    ones = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "virtual_stages", "micro_batch"), 1)
    return Plan(**({**ones, "recompute": "none", "zero": 0} | changes))


# --------------------------------------------------------------------------------------- A. what divides what


def test_q01_all_thirty_layers_are_trained() -> None:
    """NVIDIA/Megatron-LM#1304: 30 layers, PP=4; 7+7+7+7 were built. Here 7+8+8+7, and the weights of 30."""
    instance = parse(text(gpt(layers=30, vocabulary=1024), more=", plan: {pp: [1, 4], tp: 1, zero: 0, dp: 2}"))
    four, one = (evaluate(instance, on_one_server(plan(pp=pp, dp=2))).workloads["pretrain"] for pp in (4, 1))
    assert len(four.memory.stages_bytes) == 4
    # next to no vocabulary, so the stage that works longest is one in the middle, with 8 of the 30 layers
    assert four.breakdown_s["compute"] / one.breakdown_s["compute"] == pytest.approx(8 / 30, rel=1e-12)
    assert four.mfu * four.step_time_s * 4 == pytest.approx(one.mfu * one.step_time_s, rel=1e-12)
    legal = values(text(gpt(layers=30), servers=4), "pp")
    # of these, 1, 2, 3, 5, 6, 10, 15, 30 split evenly; the others have lighter ends, and 30 layers all the same
    assert legal >= {1, 2, 4, 5, 8, 10}
    assert all(sum(map(sum, stages.layers_of_stages(30, pp))) == 30 for pp in legal)


def test_q03_sixteen_stages_of_forty_layers_are_refused_with_the_way_out() -> None:
    """NVIDIA/Megatron-LM#1303: GPT-3 13B (40 layers) on 16 GPUs, PP=16: 32 layers were built."""
    model = gpt(layers=40, hidden=5120, heads=40)
    said = refused(text(model, servers=2, more=", plan: {pp: 16}"))
    assert "workloads[0].plan.pp: found 16" in said
    assert "40 layers cannot be placed on pp 16" in said
    assert "6 on first and last stage and 2 on the others" in said
    # PP 8 with TP or DP 2 takes all 16 GPUs
    assert values(text(model, servers=2), "pp") >= {8, 10}
    assert (
        len(random_designs(CostModel(parse(text(model, servers=2, more=", plan: {pp: 8, dp: 2, tp: 1}"))), 5, 1)) == 5
    )


@pytest.mark.parametrize("layers", [61, 27])
def test_q06_no_design_drops_a_layer(layers: int) -> None:
    """pytorch/torchtitan PR#963: odd numbers of layers; the sum of the stages is the model, whatever the plan."""
    model = CostModel(parse(text(gpt(layers=layers), servers=4, more=", framework: torchtitan")))
    rows = random_designs(model, 200, 1)
    parameters = model.memory_model
    seen = set()
    for row in range(200):
        design = model.decode(rows.columns, row).plan
        seen.add(design.pp)
        total = sum(
            float(parameters.local_parameters(1, design.pp, design.virtual_stages, stage=stage))
            for stage in range(design.pp)
        )
        per_layer = 12 * 2048 * 2048 + 2 * 2048
        copies = 2 if design.pp > 1 else 1  # a tied head is a copy of its own on the last stage
        assert total == layers * per_layer + copies * 50257 * 2048 + 2048
    assert len(seen) > 1


def test_q07_two_key_and_value_heads_allow_two_ways() -> None:
    """pytorch/torchtitan PR#2577: TP=4 crashed; it is refused before, and told why."""
    model = gpt(heads=16, kv_heads=2)
    said = refused(text(model, more=", framework: torchtitan, plan: {tp: 4}"))
    assert "tp 4 does not divide the 2 key and value heads" in said
    assert values(text(model, more=", framework: torchtitan"), "tp") == {1, 2}


def test_q08_twenty_eight_heads() -> None:
    """THU-KEG/AdaptThink#1: TP=8 with 28 heads; right are 1, 2, 4, 7, 14, 28, with 4 KV heads 1, 2, 4."""
    model = gpt(hidden=3584, heads=28)
    assert "tp 8 does not divide the 28 attention heads" in refused(text(model, more=", plan: {tp: 8}"))
    # a sequence that 7 divides too; 28 would need more than two domains of 8
    assert values(text(model, servers=4, length=3584), "tp") == {1, 2, 4, 7, 14}
    assert values(text(gpt(hidden=3584, heads=28, kv_heads=4), servers=4, length=3584), "tp") == {1, 2, 4}


def test_q12_the_padded_vocabulary_is_what_is_stored_and_computed() -> None:
    """bigscience logs: 50257 at TP=4 padded to 50688. Memory holds 50688 / 4 columns of each matrix."""
    (padded, unpadded) = (
        evaluate(parse(text(gpt(vocabulary=vocabulary))), on_one_server(plan(tp=4, dp=2))).workloads["pretrain"]
        for vocabulary in (50257, 50688)
    )
    assert padded.memory == unpadded.memory
    assert padded.step_time_s == unpadded.step_time_s
    assert padded.mfu < unpadded.mfu  # the 431 dummy tokens are no work of the model


def test_q13_a_vocabulary_of_twice_a_prime_is_padded() -> None:
    """vllm#578: 49954 = 2 x 24977; padded to a multiple of 128 x tp it takes sixteen ways."""
    assert values(text(gpt(vocabulary=49954), servers=2), "tp") == {1, 2, 4, 8, 16}


@pytest.mark.parametrize(("length", "legal"), [(4112, True), (4104, False), (4128, True)])
def test_q14_the_sequence_is_a_multiple_of_sixteen(length: int, legal: bool) -> None:
    """NVIDIA-NeMo/RL PR#3563: CP=2, TP=8: 16, not 32 (4112 = 257 x 16) and not 8 (4104 = 513 x 8)."""
    asked = text(gpt(), servers=2, length=length, more=", plan: {cp: 2, tp: 8}")
    if legal:
        assert len(CostModel(parse(asked)).design_space.degrees)
    else:
        assert "no multiple of 16, which tp 8 with cp 2 needs" in refused(asked)


# ------------------------------------------------------------------------------------------- B. ranks and batches


def test_q15_sixteen_ranks_do_not_stand_on_eight_gpus() -> None:
    """NVIDIA/Megatron-LM#1000: Llama-3 70B on 8 x A100, TP=8 PP=2: that is 16."""
    instance = parse(text("llama-3-70b", server="dgx-a100", length=4096, batch=16))
    found = evaluate(instance, on_one_server(plan(tp=8, pp=2), server="dgx-a100"))
    assert "placement: 16 ranks in a domain of 8 GPUs (dgx-a100)" in found.violations
    pinned = text("llama-3-70b", server="dgx-a100", length=4096, batch=16, more=", plan: {tp: 8, pp: 2}")
    assert not len(CostModel(parse(pinned)).design_space.degrees)


@pytest.mark.parametrize("m", [1, 2, 4, 16])
def test_q15_the_bubble_of_two_stages(m: int) -> None:
    """Same thread: with PP=2, DP=1 and few micro-batches the bubble alone is 1 / (m + 1)."""
    played = play(np.full((2, 1), 1.0), np.full((2, 1), 2.0), 0.0, m)
    assert played.bubble_fraction == pytest.approx(1 / (m + 1), rel=1e-12)


def test_q18_the_batch_that_seven_ranks_cannot_make() -> None:
    """OpenRLHF#346: 256 != 2 x 18 x 7; offered are 252 and 266, or 8 ranks."""
    said = refused(text(gpt(), batch=256, more=", framework: deepspeed, plan: {micro_batch: 2, dp: 7}"))
    assert "252, 266" in said
    assert 7 not in values(text(gpt(), batch=256), "dp")
    assert 8 in values(text(gpt(), batch=256), "dp")


@pytest.mark.parametrize(("batch", "dp", "full"), [(384, 16, True), (352, 16, False), (192, 8, True), (176, 8, False)])
def test_q19_the_pipeline_is_full_when_every_stage_works_at_once(batch: int, dp: int, full: bool) -> None:
    """bigscience#70: PP=12, micro-batch 2: full at 384 with 16 data-parallel ranks, at 192 with 8, not a step below."""
    m = batch // (2 * dp)
    before_first_backward = next(n for n, step in enumerate(operations(12, 1, m, 0)) if step[0] == 1)
    assert (before_first_backward == 12) == full


# ---------------------------------------------------------------------------------------- C. fits or does not


def test_q20_seventy_billion_parameters_on_8_16_and_32_gpus() -> None:
    """epfLLM/Megatron-LLM#6, #52: Llama-2 70B, full training, 80 GB: not on 8; 16 at the edge or below; 32 runs."""
    verdicts = {}
    for servers in (1, 2, 4):
        asked = text("llama-2-70b", servers=servers, server="dgx-a100", length=4096, batch=16, more=", plan: {cp: 1}")
        solution = solve(parse(asked), Limits(time_s=60.0))
        verdicts[servers] = (
            solution.evaluation.workloads["pretrain"].memory.verdict if solution.evaluation else solution.status
        )
        if servers == 1:
            assert solution.conflict is not None
    assert verdicts[1] == "infeasible"
    assert verdicts[2] in ("infeasible", "tight")
    assert verdicts[4] in ("fits", "tight")


def test_q25_the_first_and_the_last_stage_are_the_fullest() -> None:
    """deepspeedai/DeepSpeed#1378: one layer a stage: both ends above the middle, by embedding and head."""
    model = gpt(layers=8, hidden=4096, heads=32)
    found = evaluate(parse(text(model, length=1024, batch=1)), on_one_server(plan(pp=8)))
    stages = found.workloads["pretrain"].memory.stages_bytes
    assert found.workloads["pretrain"].memory.worst_stage in (0, 7)
    assert min(stages[0], stages[-1]) > 1.1 * max(stages[1:-1])


def test_q26_sharding_never_counts_twice() -> None:
    """deepspeedai/DeepSpeed#6796: divided by the shards and again by TP: below total / N. Here it never is."""
    instance = parse(text("llama-3-8b", servers=2, length=8192, more=", plan: {zero: [0, 1, 2, 3]}"))
    model = CostModel(instance)
    rows = random_designs(model, 300, 1)
    constants = instance.assumptions
    for row in range(300):
        design = model.decode(rows.columns, row)
        memory = evaluate(instance, design).workloads["pretrain"].memory
        # the worst of all GPUs is at least the mean of the states over all GPUs
        share = 18 * 8.03e9 / design.plan.world
        assert memory.worst_rank_bytes - constants.memory_reserved_bytes >= share * (1 + constants.memory_fragmentation)


def test_q29_context_parallelism_alone_does_not_fit() -> None:
    """pytorch/torchtitan PR#685: Llama-3 8B, 8 H100, CP=8: out of memory; sharded over the CP group it runs."""
    instance = parse(text("llama-3-8b", length=8192, batch=8, more=", framework: torchtitan"))
    alone = evaluate(instance, on_one_server(plan(cp=8)))
    assert any(fault.startswith("memory: stage 0 needs ") for fault in alone.violations)
    assert alone.workloads["pretrain"].memory.verdict == "exceeds"
    parts = alone.workloads["pretrain"].memory.parts_bytes
    states = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
    assert 128e9 < states / (1 + instance.assumptions.memory_fragmentation) < 145e9  # 16 to 18 bytes of 8.03e9
    sharded = evaluate(instance, on_one_server(plan(cp=8, zero=3)))
    assert sharded.feasible
    assert sharded.workloads["pretrain"].memory.verdict == "fits"
