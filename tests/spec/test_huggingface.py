"""Configurations of Hugging Face: the sizes of published models, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codesign import SpecError, parse
from codesign.cost.architecture import total_parameters
from codesign.spec.workload import Model, model_named

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_inner": None}
NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "tie_word_embeddings": False,
}
INSTANCE = """
schema: 1
name: configured
workloads: [{model: NAME, sequence_length: 4096, global_batch: 64}]
offers: none
inventory: [{server: hgx-h100, count: 1}]
objective: step_time
"""


def model(folder: Path, document: Any, stated: str = "config.json") -> Model:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return parse(INSTANCE.replace("NAME", stated), folder=folder).workloads[0].model


@pytest.mark.parametrize(
    ("document", "preset"),
    [(LLAMA, "llama-3.1-8b"), (QWEN, "qwen-2.5-72b"), (MIXTRAL, "mixtral-8x7b"), (DEEPSEEK, "deepseek-v3")],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_same_model_as_the_preset(tmp_path: Path, document: dict[str, Any], preset: str) -> None:
    found = model(tmp_path, document)
    expected = model_named(preset)
    assert total_parameters(found) == total_parameters(expected)
    assert found.model_copy(update={"name": "", "head_size": 0, "ffn_hidden": 0}) == expected.model_copy(
        update={"name": "", "head_size": 0, "ffn_hidden": 0}
    )


@pytest.mark.parametrize(
    ("document", "published"),
    [(GPT2, 124e6), (NEOX, 20.6e9)],  # Radford et al. 2019, table 2 (124M in the release); Black et al. 2022
    ids=["gpt2", "gpt-neox-20b"],
)
def test_published_totals(tmp_path: Path, document: dict[str, Any], published: float) -> None:
    assert total_parameters(model(tmp_path, document)) == pytest.approx(published, rel=0.01)


def test_fields_can_be_replaced(tmp_path: Path) -> None:
    found = model(tmp_path, LLAMA, "{huggingface: config.json, layers: 4, name: short}")
    assert (found.layers, found.name, found.hidden) == (4, "short", 4096)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({**LLAMA, "model_type": "bert"}, "found 'bert'"),
        ({key: value for key, value in LLAMA.items() if key != "model_type"}, "model_type among"),
        ({key: value for key, value in LLAMA.items() if key != "vocab_size"}, "vocab_size"),
        ({**LLAMA, "hidden_size": "many"}, "whole number"),
        ({**LLAMA, "num_hidden_layers": -1}, "at least 1"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "kv_lora_rank"),
        ("{", "JSON"),
        ("[1]", "JSON object"),
        ("[" * 100_000, "JSON"),
        (" " * (1 << 21), "bytes"),
    ],
)
def test_refused_at_the_model(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        model(tmp_path, document)
    assert words in str(caught.value)
    assert {fault.line for fault in caught.value.faults} == {4}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        parse(INSTANCE.replace("NAME", "nothing.json"), folder=tmp_path)


def test_without_a_folder_no_file_is_looked_for() -> None:
    with pytest.raises(SpecError, match="no folder"):
        parse(INSTANCE.replace("NAME", "config.json"))
