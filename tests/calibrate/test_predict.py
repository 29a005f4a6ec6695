"""Predictions in the units of measurements, and the FLOPs that sources count, by hand."""

from __future__ import annotations

import pytest
from measured import run

from codesign.calibrate import predict, recipes
from codesign.cost import architecture


def test_units_of_one_step() -> None:
    found = recipes.setting(run())
    (plan,) = found.plans
    tokens = 128 * 8192

    def seconds(metric: str, unit: str, value: float) -> float:
        return predict.step_seconds(found, plan, metric, unit, value)

    assert seconds("iteration_time", "ms", 2500.0) == 2.5
    assert seconds("tokens_per_s", "tokens/s", tokens / 4) == 4.0
    assert seconds("tokens_per_s_per_gpu", "tokens/s/GPU", tokens / 64 / 4) == 4.0
    assert seconds("samples_per_s", "samples/s", 32.0) == 4.0
    # 300e9 tokens in 10 days: 347,222 tokens a second
    assert seconds("train_days_300B_tokens", "days", 10.0) == pytest.approx(tokens / (300e9 / 864000.0))
    flops = 3.0 * tokens * float(architecture.forward_flops_per_token(found.workload.model, 8192, causal_half=False))
    assert seconds("model_tflops_per_gpu", "TFLOP/s/GPU", 400.0) == pytest.approx(flops / 64 / 400e12)
    assert seconds("mfu", "%", 50.0) == pytest.approx(flops / (64 * 989e12 * 0.5))
    assert seconds("aggregate_pflops", "PFLOP/s", 25.6) == pytest.approx(flops / 25.6e15)


def test_conventions_of_sources() -> None:
    """Llama-3 8B at 8,192 tokens: 57.9 GFLOP a token over the full square, 51.5 over the causal half, both printed."""
    full, half = (
        recipes.setting(run(model="LLAMA3-8B", params_b=8, tp=1, pp=1, vp="", dp=64, source=source))
        for source in ("NVIDIA/NeMo", "NVIDIA-NeMo/Megatron-Bridge (26.08 NeMo container)")
    )
    tokens = 128 * 8192
    for found, printed in ((full, 57.9e9), (half, 51.5e9)):
        counted = predict.flops_per_step(found, found.plans[0], "model_tflops_per_gpu") / tokens
        assert counted == pytest.approx(printed, rel=0.005)


def test_hardware_flops_count_the_layers_again() -> None:
    """Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh), a forward of the layers more than the model's."""
    found = recipes.setting(
        run(model="GPT", params_b=175, layers=96, hidden=12288, heads=96, vocab=51200, gpu="A100", seq=2048, gpus=64,
            tp=8, pp=8, vp="", dp=1, gbs=64, recompute="full")
    )  # fmt: skip
    h, layers, s, vocabulary = 12288, 96, 2048, 51200
    printed = 96.0 * 64 * s * layers * h**2 * (1.0 + s / (6.0 * h) + vocabulary / (16.0 * layers * h))
    counted = predict.flops_per_step(found, found.plans[0], "hw_tflops_per_gpu")
    assert counted == pytest.approx(printed, rel=1e-3)


def test_adapters_have_no_gradients_of_weights() -> None:
    whole, lora = (recipes.setting(run(notes=notes)) for notes in ("", "LoRA"))
    ratio = predict.flops_per_step(lora, lora.plans[0], "mfu") / predict.flops_per_step(whole, whole.plans[0], "mfu")
    assert ratio == pytest.approx(2.0 / 3.0)


def test_rates_and_times_of_a_prediction_agree() -> None:
    found = recipes.setting(run())
    prediction = predict.predict(found, found.server.gpu, recipes.assumptions(**found.software.assumptions()))
    seconds = predict.in_unit_of(found, prediction, run())
    rate = predict.in_unit_of(found, prediction, run(metric="tokens_per_s", unit="tokens/s"))
    assert rate * seconds == pytest.approx(128 * 8192)
    assert sum(prediction.parts_s.values()) == pytest.approx(prediction.seconds)


def test_of_several_plans_the_fastest_counts() -> None:
    several, one = recipes.setting(run(vp="")), recipes.setting(run(vp=1))
    constants = recipes.assumptions(**one.software.assumptions())
    fastest, plain = (predict.predict(each, each.server.gpu, constants) for each in (several, one))
    assert fastest.seconds < plain.seconds
    assert fastest.plan.virtual_stages > 1
