"""Parameters, FLOPs and splits of layers against published totals and hand computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import architecture, stages
from codesign.spec.workload import Model, MultiLatent, model_named

LLAMA_3_8B = model_named("llama-3-8b")
# with the vocabulary that the papers count, padded from 50,257
GPT_3 = model_named("gpt3-175b").model_copy(update={"vocabulary": 51200})
MIXTRAL = model_named("mixtral-8x7b")
DEEPSEEK_V3 = model_named("deepseek-v3")
ALL = [LLAMA_3_8B, GPT_3, MIXTRAL, DEEPSEEK_V3]


# ------------------------------------------------------------------------------------------------- parameters


def test_parameters_of_a_dense_layer_by_hand() -> None:
    # attention 4096 x (4096 + 2 x 1024) + 4096 x 4096 = 41,943,040; three matrices 4096 x 14336 =
    # 176,160,768; two norms 8192
    assert architecture.layer_parameters(LLAMA_3_8B) == 41_943_040 + 176_160_768 + 8_192


@pytest.mark.parametrize(
    ("model", "total"),
    [
        # 32 x 218,112,000 + 2 x 128,256 x 4096 + 4096; the count that the published checkpoint has
        (LLAMA_3_8B, 8_030_261_248),
        # 32 x (41,943,040 + 8 x 176,160,768 + 32,768 + 8,192) + 2 x 32,000 x 4096 + 4096
        (MIXTRAL, 46_702_792_704),
    ],
)
def test_total_equals_the_published_count(model: Model, total: int) -> None:
    assert architecture.total_parameters(model) == total


def test_total_of_gpt3_is_175_billion() -> None:
    # 96 x (12 x 12288^2 + 2 x 12288) + 51,200 x 12,288 + 12,288: tied, so the matrix counts once
    assert architecture.total_parameters(GPT_3) == 96 * (12 * 12288**2 + 24576) + 51200 * 12288 + 12288
    assert architecture.total_parameters(GPT_3) == pytest.approx(175e9, rel=0.005)


def test_latent_attention_by_hand() -> None:
    # 7168x1536 + 1536x(128x192) + 7168x(512+64) + 512x(128x256) + (128x128)x7168
    by_hand = 11_010_048 + 37_748_736 + 4_128_768 + 16_777_216 + 117_440_512
    assert sum(m.parameters for m in architecture.attention_projections(DEEPSEEK_V3)) == by_hand


def test_latent_attention_without_a_query_latent() -> None:
    latent = MultiLatent(q_rank=0, kv_rank=512, nope_size=128, rope_size=64, value_size=128)
    model = DEEPSEEK_V3.model_copy(update={"multi_latent": latent})
    names = [matrix.name for matrix in architecture.attention_projections(model)]
    assert names == ["query", "key value down", "key value up", "attention output"]


def test_deepseek_v3_has_671_billion_and_37_active() -> None:
    assert architecture.total_parameters(DEEPSEEK_V3) == pytest.approx(671.0e9, rel=0.001)
    # The report says 37 B active; that leaves some of the embedding out, we count it whole: 37.55 B.
    assert architecture.active_parameters(DEEPSEEK_V3) == pytest.approx(37.5e9, rel=0.01)


def test_mixtral_has_13_billion_active() -> None:
    # 32 x (41,943,040 + 2 x 176,160,768 + 32,768 + 8,192) + 262,144,000 + 4096
    assert architecture.active_parameters(MIXTRAL) == 12_879_925_248


@pytest.mark.parametrize("model", [LLAMA_3_8B, GPT_3])
def test_a_dense_model_is_active_whole(model: Model) -> None:
    assert architecture.active_parameters(model) == architecture.total_parameters(model)


def test_layers_of_a_mixture_are_counted_by_kind() -> None:
    assert architecture.layer_counts(DEEPSEEK_V3) == {"dense": 3, "mixture": 58}
    assert architecture.layer_counts(MIXTRAL) == {"mixture": 32}
    assert architecture.layer_counts(LLAMA_3_8B) == {"dense": 32}


def test_norms_are_replicated_and_matrices_cut() -> None:
    tp = np.array([1, 2, 4, 8])
    local = architecture.local_layer_parameters(LLAMA_3_8B, tp)
    np.testing.assert_allclose(local, (41_943_040 + 176_160_768) / tp + 8_192)


def test_key_and_value_heads_are_replicated_beyond_their_number() -> None:
    # tp 16 on 8 key and value heads: one head of keys and one of values on each rank, 2 x 128 columns of 4096
    qkv = architecture.attention_projections(LLAMA_3_8B)[0]
    assert qkv.local_outputs(16) == 4096 / 16 + 2 * 128
    assert qkv.local_parameters(8) == qkv.parameters / 8


@pytest.mark.parametrize("model", ALL)
def test_shards_never_hold_less_than_the_whole(model: Model) -> None:
    tp = np.array([1, 2, 4, 8, 16, 32])
    for kind in architecture.kinds(model):
        whole = architecture.layer_parameters(model, kind)
        if kind == "mixture":
            whole -= model.experts * architecture.expert_parameters(model)
        assert np.all(tp * architecture.local_layer_parameters(model, tp, kind) >= whole)


# ------------------------------------------------------------------------------------------------- vocabulary


@pytest.mark.parametrize(
    ("vocabulary", "tp", "multiple", "padded"),
    [
        (50257, 4, 128, 50688),  # 512 x 99
        (50257, 1, 128, 50304),  # 128 x 393
        (51200, 8, 128, 51200),  # already 1024 x 50
        (128256, 8, 1, 128256),
        (10, 4, 1, 12),  # shards of 3, 3, 3, 1: the largest times four
    ],
)
def test_padded_vocabulary(vocabulary: int, tp: int, multiple: int, padded: int) -> None:
    assert architecture.padded_vocabulary(vocabulary, tp, multiple) == padded


# ------------------------------------------------------------------------------------------------------ FLOPs


def test_model_flops_are_those_of_narayanan() -> None:
    # SC'21 eq. 3 has four forwards: 96 B s l h^2 (1 + s/6h + V/16lh). Three of four of the layers, and the
    # head three times (it is not recomputed there either): 72 s l h^2 (1 + s/6h) + 6 s h V, for one sequence.
    s, h, layers, v = 2048, 12288, 96, 51200
    by_hand = 72 * layers * h**2 * (1 + s / (6 * h)) + 6 * h * v
    assert architecture.model_flops_per_token(GPT_3, s, causal_half=False) == pytest.approx(by_hand, rel=1e-12)


def test_causal_half_halves_the_core_alone() -> None:
    full = architecture.forward_flops_per_token(LLAMA_3_8B, 8192, causal_half=False)
    half = architecture.forward_flops_per_token(LLAMA_3_8B, 8192)
    # core: 4 x 8192 x 32 heads x 128 = 134,217,728 a layer and token
    assert full - half == 32 * 134_217_728 / 2


def test_a_bidirectional_model_has_no_half() -> None:
    both_ways = LLAMA_3_8B.model_copy(update={"causal": False})
    assert architecture.attention_flops_per_token(both_ways, 4096) == 4 * 4096 * 32 * 128


def test_latent_attention_core_by_hand() -> None:
    # scores over 128 + 64, values over 128: 2 x 4096 x 128 heads x 320, and half of it
    assert architecture.attention_flops_per_token(DEEPSEEK_V3, 4096) == 4096 * 128 * 320


def test_a_mixture_computes_the_active_experts_only() -> None:
    attention, experts, router = 41_943_040, 2 * 176_160_768, 32_768
    assert architecture.layer_matmul_flops_per_token(MIXTRAL, "mixture") == 2 * (attention + experts + router)


def test_training_is_three_forwards() -> None:
    forward = architecture.forward_flops_per_token(MIXTRAL, 4096)
    assert architecture.model_flops_per_token(MIXTRAL, 4096) == 3 * forward


# ----------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize(
    ("layers", "pp", "v", "split"),
    [
        (32, 4, 1, ((8,), (8,), (8,), (8,))),
        (32, 4, 2, ((4, 4), (4, 4), (4, 4), (4, 4))),
        (126, 16, 1, ((7,), *(((8,),) * 14), (7,))),  # 126 + 2 = 128 = 16 x 8
        (30, 4, 1, ((7,), (8,), (8,), (7,))),  # 30 + 2 = 32 = 4 x 8
        (22, 2, 3, ((3, 4, 4), (4, 4, 3))),  # 22 + 2 = 24 = 6 x 4: first and last chunk lighter
        (5, 1, 1, ((5,),)),
    ],
)
def test_splits(layers: int, pp: int, v: int, split: tuple[tuple[int, ...], ...]) -> None:
    assert stages.layers_of_stages(layers, pp, v) == split


@pytest.mark.parametrize(
    ("layers", "pp", "v"),
    [
        (40, 16, 1),  # none of 40 to 46 is a multiple of 16
        (50, 29, 1),
        (6, 8, 1),  # 6 + 2 = 8, but the ends would be empty
        (1, 2, 1),
    ],
)
def test_no_split(layers: int, pp: int, v: int) -> None:
    assert not stages.split_is_legal(layers, pp, v)
    with pytest.raises(ValueError, match=f"{layers} layers have no split into {pp} stages"):
        stages.layers_of_stages(layers, pp, v)
    assert np.isnan(stages.stage_layers(layers, pp, v, stage=0))


@settings(max_examples=200, deadline=None)
@given(layers=st.integers(1, 140), pp=st.integers(1, 24), v=st.integers(1, 6))
def test_every_layer_is_placed_exactly_once(layers: int, pp: int, v: int) -> None:
    if not stages.split_is_legal(layers, pp, v):
        return
    split = stages.layers_of_stages(layers, pp, v)
    assert sum(map(sum, split)) == layers
    assert len(split) == pp
    assert all(len(chunks) == v for chunks in split)
    assert min(map(min, split)) >= (0 if v > 1 else 1)
    assert min(map(sum, split)) >= 1
    counted = stages.stage_layers(layers, pp, v, stage=np.arange(pp))
    np.testing.assert_array_equal(counted, [sum(chunks) for chunks in split])
    assert stages.first_stage_layers(layers, pp, v) == sum(split[0])
    assert stages.last_stage_layers(layers, pp, v) == sum(split[-1])
    assert stages.heaviest_stage_layers(layers, pp, v) == max(map(sum, split))


def test_stages_that_are_not_there_hold_nothing() -> None:
    np.testing.assert_array_equal(stages.stage_layers(32, [1, 2, 4], stage=1), [0, 16, 8])


def test_dense_layers_come_first() -> None:
    # 61 + 2 = 63 = 21 x 3: stages of 2, 3, ..., 3, 2 layers; the three dense ones fill stage 0 and one place
    # of stage 1
    np.testing.assert_array_equal(
        stages.stage_layers_of_kind(DEEPSEEK_V3, "dense", 21, 1, stage=np.arange(4)), [2, 1, 0, 0]
    )
    np.testing.assert_array_equal(
        stages.stage_layers_of_kind(DEEPSEEK_V3, "mixture", 21, 1, stage=[0, 1, 2, 20]), [0, 2, 3, 2]
    )


@pytest.mark.parametrize("pp", [1, 3, 7, 9, 21, 61])
def test_kinds_add_up_to_the_model(pp: int) -> None:
    every = np.arange(pp)
    assert stages.stage_layers_of_kind(DEEPSEEK_V3, "dense", pp, 1, stage=every).sum() == 3
    assert stages.stage_layers_of_kind(DEEPSEEK_V3, "mixture", pp, 1, stage=every).sum() == 58


def test_each_combination_keeps_shape_and_order() -> None:
    found = stages.each_combination(lambda a, b: 10.0 * a + b, [[1], [2]], [3, 4, 3])
    np.testing.assert_array_equal(found, [[13, 14, 13], [23, 24, 23]])
