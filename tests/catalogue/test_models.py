"""Parameters counted from the sizes of each model against the totals that its publisher states."""

from __future__ import annotations

from typing import Any

import pytest

from codesign import catalogue

PUBLISHED = {
    "gpt3-175b": 174.6e9,  # Brown et al. 2020, table 2.1
    "llama-2-7b": 6.74e9,  # model cards of the publishers, here and below
    "llama-2-13b": 13.02e9,
    "llama-2-70b": 68.98e9,
    "llama-3-8b": 8.03e9,
    "llama-3-70b": 70.6e9,
    "llama-3.1-8b": 8.03e9,
    "llama-3.1-70b": 70.6e9,
    "llama-3.1-405b": 405.9e9,
    "qwen-2.5-72b": 72.7e9,
    "mixtral-8x7b": 46.7e9,
    # printed in the table of benchmarks that the MPT models come from, without learned positions
    "mpt-125m": 0.124e9,
    "mpt-350m": 0.354e9,
    "mpt-760m": 0.757e9,
    "mpt-1b": 1.311e9,
    "mpt-3b": 2.646e9,
    "mpt-7b": 6.65e9,
    "mpt-13b": 12.84e9,
    "mpt-30b": 29.96e9,
    "mpt-70b": 64.84e9,
    "gpt3-5b": 5.0e9,
    "nemotron-3-8b": 8.5e9,
    "nemotron-3-22b": 21.2e9,
    "nemotron-4-15b": 15.6e9,
    "nemotron-4-340b": 341e9,
    "grok-1": 314e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "gpt-oss-120b": 116.8e9,
    "kimi-k2": 1026e9,
    "deepseek-v3": 671e9,  # DeepSeek-AI 2024, abstract; without the module that predicts a second token
}


def parameters(model: dict[str, Any]) -> int:
    """Weights of all matrices; norms and biases, under 0.1 %, left out."""
    hidden, matrices = model["hidden"], 3 if model["gated"] else 2
    latent = model.get("multi_latent")
    if latent:
        query = latent["nope_size"] + latent["rope_size"]
        attention = hidden * latent["q_rank"] + latent["q_rank"] * model["heads"] * query
        attention += hidden * (latent["kv_rank"] + latent["rope_size"])
        attention += latent["kv_rank"] * model["heads"] * (latent["nope_size"] + latent["value_size"])
        attention += model["heads"] * latent["value_size"] * hidden
    else:
        attention = hidden * model["head_size"] * (2 * model["heads"] + 2 * model["kv_heads"])
    dense = matrices * hidden * model["ffn_hidden"]
    experts = model.get("experts", 0)
    mixture = hidden * experts + (experts + model.get("shared_experts", 0)) * matrices * hidden * model.get(
        "expert_ffn_hidden", 0
    )
    dense_layers = model["dense_layers"] if experts else model["layers"]
    embeddings = model["vocabulary"] * hidden * (1 if model["tied_embeddings"] else 2)
    return int(
        model["layers"] * attention + dense_layers * dense + (model["layers"] - dense_layers) * mixture + embeddings
    )


def test_every_model_has_a_published_total() -> None:
    assert set(PUBLISHED) == set(catalogue.load().names("models"))


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_come_within_one_percent_of_the_published_total(name: str) -> None:
    assert parameters(catalogue.load().values("models", name)) == pytest.approx(PUBLISHED[name], rel=0.01)


def test_the_count_by_hand_for_llama_2_7b() -> None:
    # 32 layers of 4 x 4096^2 + 3 x 4096 x 11008 = 67,108,864 + 135,266,304
    # and 2 x 32000 x 4096 = 262,144,000
    assert parameters(catalogue.load().values("models", "llama-2-7b")) == 32 * 202_375_168 + 262_144_000


def test_a_wrong_number_of_key_and_value_heads_would_be_noticed() -> None:
    mixtral = catalogue.load().values("models", "mixtral-8x7b")
    assert parameters({**mixtral, "kv_heads": 32}) != pytest.approx(PUBLISHED["mixtral-8x7b"], rel=0.01)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes_fit_together(name: str) -> None:
    model = catalogue.load().values("models", name)
    assert model["heads"] % model["kv_heads"] == 0
    if "multi_latent" in model:
        assert model["head_size"] == model["multi_latent"]["nope_size"] + model["multi_latent"]["rope_size"]
    else:
        # most models; some have heads whose width has a figure of its own
        free = name.startswith(("qwen3", "gpt-oss"))
        assert free or model["head_size"] * model["heads"] == model["hidden"]
