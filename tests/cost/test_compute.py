"""Seconds of layers, head and optimizer: hand computation on a simple GPU, and the invariants of a cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import architecture, compute
from codesign.spec.hardware import Efficiency, Gpu
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Model

MODEL = Model(
    name="small",
    layers=8,
    hidden=1024,
    heads=8,
    kv_heads=2,
    head_size=128,
    ffn_hidden=4096,
    gated=True,
    vocabulary=32000,
    tied_embeddings=False,
)
MIXTURE = MODEL.model_copy(update={"experts": 16, "top_k": 2, "expert_ffn_hidden": 512, "shared_experts": 1})
LENGTH = 2048


def gpu(
    peak: float = 1e15,
    bandwidth: float = 1e12,
    ceiling: float = 0.5,
    half: float = 0.0,
    launch_s: float = 0.0,
) -> Gpu:
    return Gpu(
        name="plain",
        peak_flops={"bf16": peak, "fp8": 2 * peak},
        memory_bytes=80e9,
        memory_bandwidth_bytes_per_s=bandwidth,
        domain_bandwidth_bytes_per_s=1e11,
        domain_latency_s=1e-6,
        tdp_w=None,
        efficiency=Efficiency(
            matmul_ceiling=ceiling,
            attention_ceiling=0.25,
            memory_ceiling=0.5,
            tokens_half=half,
            width_half=half,
            launch_s=launch_s,
        ),
    )


ENDLESS = 1e30  # a bandwidth at which no roofline shows


# --------------------------------------------------------------------------------------------- layer, by hand


def test_matmul_by_hand() -> None:
    # weights 1024x(1024+512) + 1024x1024 + 3x1024x4096 = 15,204,352; 2 FLOPs each, 2048 tokens, half of 1e15
    found = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16")
    assert found.matmul_s == pytest.approx(2 * 15_204_352 * 2048 / 0.5e15, rel=1e-12)


def test_attention_core_by_hand() -> None:
    # causal: 2 x s x 8 heads x 128 a token = 2 x 2048 x 1024; a quarter of 1e15
    found = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16")
    assert found.attention_s == pytest.approx(2 * 2048 * 1024 * 2048 / 0.25e15, rel=1e-12)


def test_elementwise_by_hand() -> None:
    # elements a token: norms 2x2x1024, residuals 2x3x1024, rotary 2x(8+2)x128, gate 3x4096 = 25,088; 2 bytes
    assert compute.elementwise_bytes_per_token(MODEL) == 2 * (4096 + 6144 + 2560 + 12288)
    found = compute.layer_forward(MODEL, LENGTH, 4, 2, 2, gpu(), "bf16")
    # micro-batch 4 over cp 2 and tp 2: 2048 tokens a rank; half of 1e12 bytes a second
    assert found.elementwise_s == pytest.approx(50_176 * 2048 / 0.5e12, rel=1e-12)


def test_an_ungated_activation_moves_two_passes() -> None:
    ungated = MODEL.model_copy(update={"gated": False})
    assert compute.elementwise_bytes_per_token(MODEL) - compute.elementwise_bytes_per_token(ungated) == 2 * 4096


def test_few_tokens_are_bound_by_the_weights() -> None:
    # 2 tokens (cp 1024): each matrix takes its bytes / 0.5e12. For ffn in: weights 2x1024x8192, rows 2 x 2 x
    # (1024+8192)
    found = compute.layer_forward(MODEL, LENGTH, 1, 1, 1024, gpu(), "bf16")
    weights = 15_204_352
    ends = (1024 + 1536) + (1024 + 1024) + (1024 + 8192) + (4096 + 1024)
    assert found.matmul_s == pytest.approx(2 * (weights + 2 * ends) / 0.5e12, rel=1e-12)


def test_fp8_doubles_the_rate_of_matrices_and_not_of_the_core() -> None:
    plain = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16")
    eight = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "fp8")
    assert eight.matmul_s == pytest.approx(plain.matmul_s / 2)
    assert eight.attention_s == plain.attention_s


def test_efficiency_is_half_at_the_half() -> None:
    shaped = gpu(ceiling=0.8, half=1024.0)
    assert compute.matmul_efficiency(shaped, 1024, 1e30) == pytest.approx(0.4)
    assert compute.matmul_efficiency(shaped, 1024, 1024) == pytest.approx(0.2)


def test_tokens_and_width_that_the_efficiency_sees() -> None:
    # 4 x 2048 / cp 2 = 4096 tokens, 1024 / tp 4 = 256 wide
    shaped = gpu(bandwidth=ENDLESS, half=512.0)
    plain = gpu(bandwidth=ENDLESS)
    slow = compute.layer_forward(MODEL, LENGTH, 4, 4, 2, shaped, "bf16").matmul_s
    fast = compute.layer_forward(MODEL, LENGTH, 4, 4, 2, plain, "bf16").matmul_s
    # tp 4 replicates the two key and value heads alike in both
    assert fast / slow == pytest.approx(4096 / (4096 + 512) * 256 / (256 + 512))


def test_replicated_heads_cost_time() -> None:
    # tp 8 on 2 key and value heads: 1024/8 + 2x128 columns of qkv in place of 1536/8
    found = compute.layer_forward(MODEL, LENGTH, 1, 8, 1, gpu(bandwidth=ENDLESS), "bf16").matmul_s
    weights = 1024 * (128 + 256) + 1024 * 1024 / 8 + 3 * 1024 * 4096 / 8
    assert found == pytest.approx(2 * weights * 2048 / 0.5e15, rel=1e-12)


def test_launch_is_paid_once_a_layer() -> None:
    found = compute.layer_forward(MODEL, LENGTH, [1, 2, 4], 1, 1, gpu(launch_s=3e-5), "bf16")
    np.testing.assert_array_equal(found.launch_s, [3e-5] * 3)


# ------------------------------------------------------------------------------------- backward and recompute


def test_backward() -> None:
    forward = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(launch_s=1e-5), "bf16")
    backward = compute.layer_backward(forward)
    assert backward.matmul_s == 2 * forward.matmul_s
    assert backward.attention_s == 2.5 * forward.attention_s
    assert backward.elementwise_s == 2 * forward.elementwise_s
    assert backward.launch_s == 2 * forward.launch_s


def test_recompute() -> None:
    forward = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(launch_s=1e-5), "bf16")
    extra = compute.layer_recompute(forward, ["none", "selective", "full"])
    np.testing.assert_allclose(extra.total_s, [0.0, forward.attention_s, forward.total_s])


def test_sum_of_parts() -> None:
    forward = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, gpu(launch_s=1e-5), "bf16")
    both = forward + compute.layer_backward(forward)
    assert both.total_s == pytest.approx(forward.total_s + compute.layer_backward(forward).total_s)


# ---------------------------------------------------------------------------------------------------- mixture


def test_experts_by_hand() -> None:
    # attention 2,621,440 + router 1024x16 (on a share of the tokens: tp 1, so all) + shared 3x1024x512 =
    # 1,572,864, routed 2 x 1,572,864 for each token
    found = compute.layer_forward(MIXTURE, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16", kind="mixture")
    weights = 2_621_440 + 16_384 + 1_572_864 + 2 * 1_572_864
    assert found.matmul_s == pytest.approx(2 * weights * 2048 / 0.5e15, rel=1e-12)


def test_imbalance_stretches_the_routed_experts_only() -> None:
    even = compute.layer_forward(MIXTURE, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16", kind="mixture")
    skewed = compute.layer_forward(
        MIXTURE, LENGTH, 1, 1, 1, gpu(bandwidth=ENDLESS), "bf16", kind="mixture", imbalance=1.5
    )
    assert skewed.matmul_s - even.matmul_s == pytest.approx(0.5 * 2 * 2 * 1_572_864 * 2048 / 0.5e15)


def test_expert_parallelism_gives_each_expert_more_tokens() -> None:
    few = compute.layer_forward(MIXTURE, LENGTH, 1, 1, 1, gpu(half=512.0), "bf16", kind="mixture", ep=1)
    many = compute.layer_forward(MIXTURE, LENGTH, 1, 1, 1, gpu(half=512.0), "bf16", kind="mixture", ep=16)
    assert many.matmul_s < few.matmul_s


# --------------------------------------------------------------------------------- head, embedding, optimizer


def test_head_by_hand() -> None:
    # 32000 pads to 32000 (128 x 250) at tp 1. 2 x 1024 x 32000 x 2048 FLOPs at 0.5e15 are 0.27 ms, but the
    # bytes take longer: weights, inputs and logits. Final norm 2 x 2 x 1024 bytes a token, loss 18 bytes a
    # logit.
    found = compute.head_forward(MODEL, LENGTH, 1, 1, 1, gpu())
    moved = 2 * (1024 * 32000 + 2048 * 1024 + 2048 * 32000)
    assert found.matmul_s == pytest.approx(moved / 0.5e12, rel=1e-12)
    assert found.elementwise_s == pytest.approx((4096 * 2048 + 18 * 32000 * 2048) / 0.5e12, rel=1e-12)


def test_head_runs_over_the_padded_shard() -> None:
    # tp 8: next multiple of 1024 is 32768, 4096 columns a rank
    found = compute.head_forward(MODEL, LENGTH, 1, 8, 1, gpu(bandwidth=ENDLESS))
    assert found.matmul_s == pytest.approx(2 * 1024 * 4096 * 2048 / 0.5e15, rel=1e-12)


def test_head_backward_counts_its_own_bytes() -> None:
    forward = compute.head_forward(MODEL, LENGTH, 1, 1, 1, gpu())
    backward = compute.head_backward(MODEL, LENGTH, 1, 1, 1, gpu())
    assert backward.matmul_s == 2 * forward.matmul_s
    assert backward.elementwise_s == pytest.approx((2 * 4096 * 2048 + 6 * 32000 * 2048) / 0.5e12, rel=1e-12)


def test_embedding_by_hand() -> None:
    # 2 micro-batches over cp 2: 2048 tokens, 1024 elements read and written
    found = compute.embedding_forward(MODEL, LENGTH, 2, 2, gpu())
    assert found.total_s == pytest.approx(2 * 2 * 1024 * 2048 / 0.5e12)
    assert compute.embedding_backward(found).total_s == pytest.approx(2 * found.total_s)


def test_optimizer_by_hand() -> None:
    assumptions = Assumptions.model_construct(weight_bytes=2.0, gradient_bytes=4.0, optimizer_bytes=12.0)
    # read 4 + 12, write 12 + 2: 30 bytes for each of 1e9; from ZeRO-1 on over 8 ranks
    found = compute.optimizer_step_s(1e9, 8, [0, 1, 2, 3], gpu(), assumptions)
    np.testing.assert_allclose(found, [0.06, 0.0075, 0.0075, 0.0075])


# ------------------------------------------------------------------------------------------------- invariants

KINDS = st.sampled_from([(MODEL, "dense"), (MIXTURE, "mixture")])
DEGREES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(case=KINDS, b=DEGREES, tp=DEGREES, cp=DEGREES, more=st.floats(1.0, 8.0))
def test_a_faster_gpu_is_never_slower(case: tuple[Model, str], b: int, tp: int, cp: int, more: float) -> None:
    model, kind = case

    def seconds(which: Gpu) -> float:
        layer = compute.layer_forward(model, LENGTH, b, tp, cp, which, "bf16", kind=kind)
        head = compute.head_forward(model, LENGTH, b, tp, cp, which)
        return float(layer.total_s + compute.layer_backward(layer).total_s + head.total_s)

    base = seconds(gpu(half=300.0))
    assert seconds(gpu(peak=1e15 * more, half=300.0)) <= base
    assert seconds(gpu(bandwidth=1e12 * more, half=300.0)) <= base
    assert seconds(gpu(peak=1e15 * more, bandwidth=1e12 * more, half=300.0)) == pytest.approx(base / more)


@settings(max_examples=60, deadline=None)
@given(case=KINDS, b=DEGREES, tp=DEGREES, cp=DEGREES)
def test_doubling_a_degree_saves_at_most_half(case: tuple[Model, str], b: int, tp: int, cp: int) -> None:
    model, kind = case
    which = gpu(half=300.0)

    def matmul(b: int, tp: int, cp: int) -> float:
        return float(compute.layer_forward(model, LENGTH, b, tp, cp, which, "bf16", kind=kind).matmul_s)

    base = matmul(b, tp, cp)
    for other in (matmul(b, 2 * tp, cp), matmul(b, tp, 2 * cp)):
        assert base / 2 * (1 - 1e-12) <= other
    assert matmul(2 * b, tp, cp) <= 2 * base * (1 + 1e-12)


def test_arrays_broadcast_like_scalars() -> None:
    tp, cp, b = np.array([[1], [2]]), np.array([1, 2, 4]), 2
    table = compute.layer_forward(MODEL, LENGTH, b, tp, cp, gpu(half=100.0), "bf16").total_s
    assert table.shape == (2, 3)
    for i, t in enumerate([1, 2]):
        for j, c in enumerate([1, 2, 4]):
            one = compute.layer_forward(MODEL, LENGTH, b, t, c, gpu(half=100.0), "bf16").total_s
            assert table[i, j] == one


def test_times_of_matrices_at_the_ceiling_give_the_flops_back() -> None:
    # at half of the peak everywhere the seconds of all matrices of the model are its matrix FLOPs / 0.5e15
    which = gpu(bandwidth=ENDLESS)
    layer = compute.layer_forward(MODEL, LENGTH, 1, 1, 1, which, "bf16").matmul_s
    head = compute.head_forward(MODEL, LENGTH, 1, 1, 1, which).matmul_s
    flops = 8 * architecture.layer_matmul_flops_per_token(MODEL) + architecture.head_flops_per_token(MODEL)
    assert 8 * layer + head == pytest.approx(flops * LENGTH / 0.5e15)
