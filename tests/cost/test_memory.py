"""Bytes of stages: Korthikanti et al. 2022, hand computation, and what memory must never do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import activations, architecture, legality, memory, stages
from codesign.cost.memory import EXCEEDS, FITS, TIGHT, TrainingMemory
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Model, MultiLatent, model_named

ASSUMPTIONS = Assumptions.model_construct(
    weight_bytes=2.0,
    gradient_bytes=4.0,
    optimizer_bytes=12.0,
    memory_reserved_bytes=3e9,
    memory_fragmentation=0.05,
)
BARE = ASSUMPTIONS.model_copy(update={"memory_reserved_bytes": 0.0, "memory_fragmentation": 0.0})
GIB = 2.0**30


def gpt(layers: int, hidden: int, heads: int) -> Model:
    """f = 4h, a key and a value head for each head, no gate: the model of the paper."""
    return Model(
        name=f"gpt-{layers}x{hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn_hidden=4 * hidden,
        gated=False,
        vocabulary=51200,
        tied_embeddings=True,
    )


GPT_22B, GPT_530B, GPT_1T = gpt(48, 6144, 64), gpt(105, 20480, 128), gpt(128, 25600, 160)
LLAMA_3_8B = model_named("llama-3-8b")
MIXTRAL = LLAMA_3_8B.model_copy(
    update={"name": "mixtral", "vocabulary": 32000, "experts": 8, "top_k": 2, "expert_ffn_hidden": 14336}
)
DEEP = MIXTRAL.model_copy(
    update={
        "name": "deep",
        "layers": 22,
        "dense_layers": 3,
        "shared_experts": 1,
        "expert_ffn_hidden": 2048,
        "multi_latent": MultiLatent(q_rank=1536, kv_rank=512, nope_size=128, rope_size=64, value_size=128),
    }
)


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


# -------------------------------------------------------------------------- activations of a layer: the paper

S, B = 2048, 4
SBH = S * B * 6144


def layer(t: int, recompute: str = "none", **options: bool) -> float:
    settings_of_paper = {"attention_matrix": True, "dropout": True} | options
    return float(activations.activation_bytes(GPT_22B, S, B, t, 1, recompute, **settings_of_paper))


def test_equation_1_no_parallelism() -> None:
    assert layer(1, sequence_parallel=False) == pytest.approx(SBH * (34 + 5 * 64 * S / 6144), rel=1e-15)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_equation_2_tensor_parallel(t: int) -> None:
    assert layer(t, sequence_parallel=False) == pytest.approx(SBH * (10 + 24 / t + 5 * 64 * S / (6144 * t)), rel=1e-15)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_equation_4_with_sequence_parallel(t: int) -> None:
    assert layer(t) == pytest.approx(SBH / t * (34 + 5 * 64 * S / 6144), rel=1e-15)


@pytest.mark.parametrize("t", [1, 4, 8])
def test_equation_6_selective(t: int) -> None:
    assert layer(t, "selective") == pytest.approx(34 * SBH / t, rel=1e-15)
    assert layer(t, "selective", sequence_parallel=False) == pytest.approx(SBH * (10 + 24 / t), rel=1e-15)


def test_full_keeps_the_input_of_the_layer() -> None:
    assert layer(8, "full", sequence_parallel=False) == 2 * SBH
    assert layer(8, "full") == 2 * SBH / 8


@pytest.mark.parametrize(
    ("model", "b", "p", "v", "recompute", "sequence_parallel", "printed_gib"),
    [
        # Figure 1, tensor parallel 8: 48 sbh (10 + 24/8 + 5as/8h)
        (GPT_22B, 4, 1, 1, "none", False, 59.25),
        # interleaved by 3 on 35 stages: the first stage holds 1 + 34/105 of the 105 layers
        (GPT_530B, 1, 35, 3, "none", False, 114.0234375),
        (GPT_1T, 1, 64, 1, "none", False, 131.25),
        (GPT_1T, 1, 64, 1, "selective", True, 26.5625),
    ],
)
def test_figure_1_activations(
    model: Model, b: int, p: int, v: int, recompute: str, sequence_parallel: bool, printed_gib: float
) -> None:
    a_layer = activations.activation_bytes(
        model, S, b, 8, 1, recompute,
        sequence_parallel=sequence_parallel, attention_matrix=True, dropout=True,
    )  # fmt: skip
    held = stages.layers_in_flight(model, p, v, 512, stage=0)
    assert held * a_layer / GIB == pytest.approx(printed_gib, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "p", "printed_gib"),
    [(GPT_22B, 1, 45.5625), (GPT_530B, 35, 31.640625), (GPT_1T, 64, 32.958984375)],
)
def test_figure_1_states(model: Model, p: int, printed_gib: float) -> None:
    # The figure counts 12 h^2 parameters a layer and 18 bytes each, over tensor parallel 8; our norms add 2h
    # a layer.
    counted = 18 * model.layers / p * (architecture.local_layer_parameters(model, 8) - 2 * model.hidden)
    assert counted / GIB == pytest.approx(printed_gib, rel=1e-12)


def test_flash_attention_keeps_a_statistic_for_each_row() -> None:
    # in place of 5as/h: 4 bytes for each of 64 heads and each of S x B rows
    assert layer(1, attention_matrix=False) == 34 * SBH + 4 * 64 * S * B
    assert layer(1, "selective", attention_matrix=False) == 34 * SBH


def test_without_dropout_two_masks_of_a_byte_are_gone() -> None:
    assert layer(1, attention_matrix=False, dropout=False) == 32 * SBH + 4 * 64 * S * B


def test_gated_grouped_layer_by_hand() -> None:
    # elements a token of Llama 3 8B, 2 bytes: norms 2x4096, projections' and feed-forward's inputs 2x4096,
    # queries 4096, keys and values 2x1024, output's input 4096, gate and value 2x14336, product 14336;
    # statistics 4 x 32 bytes
    by_hand = 2 * (4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336) + 4 * 32
    found = activations.activation_bytes(LLAMA_3_8B, 8192, 1, 1, 1)
    assert found == by_hand * 8192


def test_keys_and_values_do_not_shrink_below_one_head() -> None:
    # tp 32 on 8 heads: each rank keeps one head of 128 keys and of values; everything else is cut by 32
    cut = 2 * (4 * 4096 + 4096 + 4096 + 3 * 14336) + 4 * 32
    found = activations.activation_bytes(LLAMA_3_8B, 8192, 1, 32, 1)
    assert found == pytest.approx((cut / 32 + 2 * 2 * 128) * 8192, rel=1e-14)


def test_context_parallelism_cuts_activations() -> None:
    whole = activations.activation_bytes(LLAMA_3_8B, 8192, 1, 2, 1)
    assert activations.activation_bytes(LLAMA_3_8B, 8192, 1, 2, 4) == whole / 4


def test_mixture_by_hand() -> None:
    # Mixtral a token: attention as above without the feed-forward; router scores and probabilities 2x8 in 4
    # bytes; for each of 2 experts 4096 in, 4096 back, 3x14336 inside
    attention = 2 * (4 * 4096 + 4096 + 2 * 1024 + 4096) + 4 * 32
    routed = 4 * 16 + 2 * 2 * (2 * 4096 + 3 * 14336)
    found = activations.activation_bytes(MIXTRAL, 4096, 1, 1, 1, kind="mixture")
    assert found == (attention + routed) * 4096


def test_latent_attention_by_hand() -> None:
    # latents before 1536+512+64 and after 1536+512 norms, queries and keys 32 x 192 each, values and output
    # 32 x 128
    latents = 2 * (1536 + 512 + 64 + 1536 + 512) + 2 * (2 * 32 * 192 + 2 * 32 * 128) + 4 * 32
    rest = 2 * (4 * 4096 + 3 * 14336)
    found = activations.activation_bytes(DEEP, 4096, 1, 1, 1, kind="dense")
    assert found == (latents + rest) * 4096


# -------------------------------------------------------------------------------------------------- in flight


def test_1f1b_holds_fewer_down_the_pipeline() -> None:
    np.testing.assert_array_equal(stages.chunks_in_flight(4, 1, 16, stage=np.arange(4)), [4, 3, 2, 1])
    np.testing.assert_array_equal(stages.chunks_in_flight(4, 1, 2, stage=np.arange(4)), [2, 2, 2, 1])


def test_interleaved_holds_its_warm_up_and_one() -> None:
    # p = 4, v = 2: 2 (p - i - 1) + (v - 1) p + 1 = 11, 9, 7, 5
    np.testing.assert_array_equal(stages.chunks_in_flight(4, 2, 16, stage=np.arange(4)), [11, 9, 7, 5])
    # one group of micro-batches: at most 4 x 2 chunks
    np.testing.assert_array_equal(stages.chunks_in_flight(4, 2, 4, stage=np.arange(4)), [8, 8, 7, 5])


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 4), (16, 3)])
def test_interleaving_costs_the_factor_of_the_paper(p: int, v: int) -> None:
    model = gpt(p * v * 2, 1024, 8)
    plain = stages.layers_in_flight(model, p, 1, 100 * p, stage=0)
    assert stages.layers_in_flight(model, p, v, 100 * p, stage=0) == pytest.approx(plain * (1 + (p - 1) / (p * v)))


def play(sizes: tuple[int, ...], pp: int, m: int, stage: int) -> int:
    """The interleaved schedule, one event at a time, with the order of chunks as Megatron-LM runs it."""
    v = len(sizes)
    forwards = [n % (pp * v) // pp for n in range(m * v)]
    backwards = [v - 1 - chunk for chunk in forwards]
    warm_up = min(2 * (pp - stage - 1) + (v - 1) * pp, m * v)
    held = most = done = 0
    for n, chunk in enumerate(forwards):
        held += sizes[chunk]
        most = max(most, held)
        if n >= warm_up:
            held -= sizes[backwards[done]]
            done += 1
    return most


@settings(max_examples=80, deadline=None)
@given(pp=st.sampled_from([2, 3, 4, 8]), v=st.integers(2, 4), size=st.integers(2, 4), groups=st.integers(1, 9))
def test_unequal_chunks_are_held_as_the_schedule_holds_them(pp: int, v: int, size: int, groups: int) -> None:
    model = gpt(pp * v * size - 2, 1024, 8)
    split = stages.layers_of_stages(model.layers, pp, v)
    found = stages.layers_in_flight(model, pp, v, groups * pp, stage=np.arange(pp))
    np.testing.assert_array_equal(found, [play(split[i], pp, groups * pp, i) for i in range(pp)])


@settings(max_examples=40, deadline=None)
@given(pp=st.sampled_from([2, 4, 8]), v=st.integers(2, 4), groups=st.integers(1, 9))
def test_equal_chunks_too(pp: int, v: int, groups: int) -> None:
    model = gpt(pp * v * 3, 1024, 8)
    found = stages.layers_in_flight(model, pp, v, groups * pp, stage=np.arange(pp))
    np.testing.assert_array_equal(found, [play((3,) * v, pp, groups * pp, i) for i in range(pp)])


def test_kinds_of_a_mixture_are_held_apart() -> None:
    # DEEP on 4 stages: 22 + 2 = 24 = 4 x 6: 5, 6, 6, 5 layers, the three dense ones on stage 0
    np.testing.assert_array_equal(
        stages.layers_in_flight(DEEP, 4, 1, 8, stage=np.arange(4), kind="dense"), [4 * 3, 0, 0, 0]
    )
    np.testing.assert_array_equal(
        stages.layers_in_flight(DEEP, 4, 1, 8, stage=np.arange(4), kind="mixture"), [4 * 2, 3 * 6, 2 * 6, 5]
    )


def test_no_split_is_not_a_number() -> None:
    assert np.isnan(stages.layers_in_flight(gpt(40, 1024, 8), 16, 1, 16, stage=0))
    assert np.isnan(stages.layers_in_flight(gpt(41, 1024, 8), 4, 2, 16, stage=0))


# ----------------------------------------------------------------------------------------------- whole stages


def test_one_gpu_by_hand() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 16, ASSUMPTIONS)
    by_part = case.by_part(plan(), 0)
    parameters = 8_030_261_248  # 128,256 is a multiple of 128: no padding
    assert by_part["weights"] == pytest.approx(1.05 * 2 * parameters)
    assert by_part["gradients"] == pytest.approx(1.05 * 4 * parameters)
    assert by_part["optimizer"] == pytest.approx(1.05 * 12 * parameters)
    layer_bytes = 2 * (4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336) + 4 * 32
    assert by_part["activations"] == pytest.approx(1.05 * 32 * layer_bytes * 8192)
    assert by_part["head and loss"] == pytest.approx(1.05 * 8192 * (4 * 4096 + 6 * 128256))
    assert by_part["reserved"] == 3e9
    for absent in ("gather buffer", "gradient buffer", "recompute workspace"):
        assert by_part[absent] == 0
    assert case.total(plan(), 0) == pytest.approx(sum(by_part.values()))


def test_embedding_is_first_and_head_is_last() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 16, BARE)
    matrix = 128_256 * 4096 / 2  # tp 2: 128,256 = 256 x 501, no padding
    weights = case.by_stage(plan(tp=2, pp=4, dp=1))["weights"]
    # the final norm of 4096 stands beside the head
    np.testing.assert_allclose(weights - weights[1], [2 * matrix, 0, 0, 2 * (matrix + 4096)])
    head = case.by_stage(plan(tp=2, pp=4))["head and loss"]
    assert np.count_nonzero(head) == 1
    assert head[-1] > 0


def test_a_tied_head_is_copied_in_a_pipeline_only() -> None:
    case = TrainingMemory(GPT_22B, 2048, 16, BARE)
    matrix = 51200 * 6144
    one = case.local_parameters(1, 1, 1, stage=0)
    two = case.local_parameters(1, 2, 1, stage=[0, 1])
    assert two.sum() - one == matrix


def test_zero_by_hand() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 64, BARE)
    p, shards = 8_030_261_248, 4 * 2
    expected = {
        0: (2 * p, 4 * p, 12 * p),
        1: (2 * p, 4 * p, 12 * p / shards),
        2: (2 * p, 4 * p / shards, 12 * p / shards),
        3: (2 * p / shards, 4 * p / shards, 12 * p / shards),
    }
    for zero, states in expected.items():
        found = case.by_part(plan(dp=4, cp=2, zero=zero), 0)
        np.testing.assert_allclose([found["weights"], found["gradients"], found["optimizer"]], states)


def test_buffers_of_zero_by_hand() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 64, BARE)
    # two layers of 218,112,000 against the matrix of 128,256 x 4096 = 525,336,576: the matrix is more
    found = case.by_part(plan(dp=8, zero=3), 0)
    assert found["gather buffer"] == 2 * 525_336_576
    assert found["gradient buffer"] == 4 * 218_112_000
    found = case.by_part(plan(dp=8, zero=2), 0)
    assert found["gather buffer"] == 0
    assert found["gradient buffer"] == 4 * 218_112_000


def test_full_recompute_brings_one_layer_back() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 16, BARE)
    kept = activations.activation_bytes(LLAMA_3_8B, 8192, 1, 1, 1)
    found = case.by_part(plan(recompute="full"), 0)
    assert found["activations"] == 32 * 2 * 4096 * 8192
    assert found["recompute workspace"] == kept - 2 * 4096 * 8192


def test_fp8_keeps_two_more_copies_of_the_layers() -> None:
    plain = TrainingMemory(LLAMA_3_8B, 8192, 16, BARE)
    eight = TrainingMemory(LLAMA_3_8B, 8192, 16, BARE, precision="fp8")
    assert eight.total(plan(), 0) - plain.total(plan(), 0) == 2 * 32 * 218_112_000


def test_experts_shard_over_their_own_groups() -> None:
    case = TrainingMemory(MIXTRAL, 4096, 64, BARE)
    experts = 32 * 8 * 3 * 4096 * 14336
    sharded = plan(tp=2, dp=8, ep=4, zero=1)
    found = case.by_part(sharded, 0)
    assert found["expert weights"] == 2 * experts / 4
    # 16 ranks in all: 4 of experts, and 4 copies to share the optimizer
    assert found["expert optimizer"] == pytest.approx(12 * experts / 16)
    assert case.by_part(sharded | {"zero": 0}, 0)["expert optimizer"] == 12 * experts / 4


def test_a_batch_that_does_not_divide_is_not_a_number() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 10, BARE)
    assert np.isnan(case.total(plan(dp=3), 0))
    assert memory.verdict(case.total(plan(dp=3), 0), 1e15, 0.05) == EXCEEDS


PLANS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "cp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2, 4, 8]),
        "dp": st.sampled_from([1, 2, 4]),
        "virtual_stages": st.sampled_from([1, 2]),
        "micro_batch": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero": st.integers(0, 3),
        "ep": st.sampled_from([1, 2]),
    }
)
CASES = st.sampled_from([(m, p) for m in (LLAMA_3_8B, MIXTRAL, DEEP, gpt(30, 1024, 8)) for p in ("bf16", "fp8")])


@settings(max_examples=60, deadline=None)
@given(chosen=PLANS, case=CASES)
def test_the_worst_stage_is_the_worst_of_all(chosen: dict[str, Any], case: tuple[Model, Any]) -> None:
    model, precision = case
    case_of = TrainingMemory(model, 4096, 64, ASSUMPTIONS, precision=precision)
    every = sum(case_of.by_stage(chosen).values())
    worst = case_of.worst(chosen)
    if stages.split_is_legal(model.layers, chosen["pp"], chosen["virtual_stages"]):
        assert worst == pytest.approx(np.max(every), rel=1e-14)
    else:
        assert np.isnan(worst)


@settings(max_examples=60, deadline=None)
@given(chosen=PLANS, case=CASES, stage=st.sampled_from([0, 1, -1]))
def test_parts_are_products_of_tables(chosen: dict[str, Any], case: tuple[Model, Any], stage: int) -> None:
    """Each factor asks for its own decisions only, and the parts add up to the stage."""
    model, precision = case
    case_of = TrainingMemory(model, 4096, 64, ASSUMPTIONS, precision=precision)
    total = 0.0
    decided = legality.USUAL | chosen
    for part in case_of.parts(stage):
        product = part.coefficient
        for factor in part.factors:
            product = product * factor.at({name: decided[name] for name in factor.decisions})
        total = total + product
    np.testing.assert_array_equal(total, case_of.total(chosen, stage))


@settings(max_examples=80, deadline=None)
@given(chosen=PLANS, case=CASES)
def test_states_are_never_below_an_equal_share(chosen: dict[str, Any], case: tuple[Model, Any]) -> None:
    model, _ = case
    if not stages.split_is_legal(model.layers, chosen["pp"], chosen["virtual_stages"]):
        return
    ranks = chosen["tp"] * chosen["cp"] * chosen["dp"]
    if ranks % chosen["ep"]:
        return
    by_stage = TrainingMemory(model, 4096, 64, BARE).by_stage(chosen)
    states = sum(v for k, v in by_stage.items() if k.split()[-1] in ("weights", "gradients", "optimizer"))
    whole = 18 * architecture.total_parameters(model)
    assert ranks * np.sum(states) >= whole * (1 - 1e-12)
    assert np.max(states) >= whole / (ranks * chosen["pp"]) * (1 - 1e-12)


def test_arrays_broadcast_like_scalars() -> None:
    case = TrainingMemory(LLAMA_3_8B, 8192, 64, ASSUMPTIONS)
    recompute = np.array(["none", "selective", "full"])
    table = case.worst(plan(tp=np.array([[1], [2], [8]]), recompute=recompute, pp=4, dp=2, zero=1))
    assert table.shape == (3, 3)
    for i, tp in enumerate([1, 2, 8]):
        for j, name in enumerate(recompute):
            assert table[i, j] == case.worst(plan(tp=tp, recompute=name, pp=4, dp=2, zero=1))


# ---------------------------------------------------------------------------------------------------- verdict


def test_verdicts() -> None:
    # 80 GB with 5 %: fits to 76.19, exceeds from 84.21
    np.testing.assert_array_equal(
        memory.verdict([76e9, 77e9, 84e9, 85e9, np.nan], 80e9, 0.05), [FITS, TIGHT, TIGHT, EXCEEDS, EXCEEDS]
    )
    assert memory.VERDICTS[TIGHT] == "tight"


def test_no_band_leaves_no_middle() -> None:
    np.testing.assert_array_equal(memory.verdict([80e9, 80.1e9], 80e9, 0.0), [FITS, EXCEEDS])
