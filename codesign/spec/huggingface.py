"""A Hugging Face `config.json` -> the fields of a model. Floor 1. Known architectures only: nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20

LLAMA_LIKE = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v3",
    "phi3",
    "olmo2",
)
GPT_LIKE = ("gpt2", "gpt_neox")


class ConfigurationError(ValueError):
    """A configuration that cannot be read or is of an architecture that is not known."""

    def __init__(self, expected: str, hint: str = "") -> None:
        self.expected, self.hint = expected, hint
        super().__init__(f"expected {expected}" + (f"; {hint}" if hint else ""))


def read(file: Path) -> dict[str, Any]:
    """Fields of `codesign.spec.workload.Model` from a configuration file.

    Raises
    ------
    ConfigurationError
        If it cannot be read, is no configuration, or of an unknown architecture.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ConfigurationError(f"a configuration of at most {MOST_BYTES:,} bytes")
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigurationError("a file that can be read", f"{file}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise ConfigurationError("JSON", f"{file}: {problem}") from None
    if not isinstance(document, dict):
        raise ConfigurationError("a JSON object", str(file))
    return fields(document, file.parent.name if file.stem == "config" and file.parent.name else file.stem)


def fields(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Fields of a model from a parsed configuration. ConfigurationError as `read`."""
    kind = document.get("model_type")
    if kind in LLAMA_LIKE:
        found = _llama(document)
    elif kind in GPT_LIKE:
        found = _gpt(document, kind == "gpt2")
    else:
        raise ConfigurationError(
            f"a model_type among {', '.join((*LLAMA_LIKE, *GPT_LIKE))}",
            f"found {kind!r}; state the fields of the model in the instance instead",
        )
    stated = document.get("_name_or_path")
    return {
        "name": stated if isinstance(stated, str) and 0 < len(stated) <= 100 else name or "model",
        **found,
    }


def _taker(document: Mapping[str, Any]) -> Callable[..., Any]:
    def take(key: str, default: Any = None) -> Any:
        value = document.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigurationError(f"the field '{key}' in the configuration")
        return value

    return take


def _llama(document: Mapping[str, Any]) -> dict[str, Any]:
    take = _taker(document)
    heads, hidden = take("num_attention_heads"), take("hidden_size")
    found = {
        "layers": take("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": take("num_key_value_heads", heads),
        "ffn_hidden": take("intermediate_size"),
        "gated": True,  # all of these use SwiGLU
        "vocabulary": take("vocab_size"),
        "tied_embeddings": take("tie_word_embeddings", False),
    }
    if document.get("head_dim") is not None:
        found["head_size"] = document["head_dim"]
    kind = document["model_type"]
    if kind == "mixtral":
        found |= {
            "experts": take("num_local_experts"),
            "top_k": take("num_experts_per_tok"),
            "expert_ffn_hidden": take("intermediate_size"),
        }
    elif kind in ("qwen2_moe", "qwen3_moe"):
        width = take("moe_intermediate_size")
        shared = document.get("shared_expert_intermediate_size") or 0
        if shared % width:
            raise ConfigurationError("shared experts that are a multiple of the width of one expert")
        found |= {
            "experts": take("num_experts"),
            "top_k": take("num_experts_per_tok"),
            "expert_ffn_hidden": width,
            "shared_experts": shared // width,
        }
    elif kind == "deepseek_v3":
        found |= {
            "experts": take("n_routed_experts"),
            "top_k": take("num_experts_per_tok"),
            "expert_ffn_hidden": take("moe_intermediate_size"),
            "shared_experts": take("n_shared_experts"),
            "dense_layers": take("first_k_dense_replace"),
            "head_size": take("qk_nope_head_dim"),
            "kv_heads": heads,
            "multi_latent": {
                "q_rank": document.get("q_lora_rank") or 0,
                "kv_rank": take("kv_lora_rank"),
                "nope_size": take("qk_nope_head_dim"),
                "rope_size": take("qk_rope_head_dim"),
                "value_size": take("v_head_dim"),
            },
        }
    return found


def _gpt(document: Mapping[str, Any], gpt2: bool) -> dict[str, Any]:
    take = _taker(document)
    if not gpt2:
        return {
            "layers": take("num_hidden_layers"),
            "hidden": take("hidden_size"),
            "heads": take("num_attention_heads"),
            "ffn_hidden": take("intermediate_size"),
            "gated": False,
            "vocabulary": take("vocab_size"),
            "tied_embeddings": take("tie_word_embeddings", False),
        }
    hidden = take("n_embd")
    return {
        "layers": take("n_layer"),
        "hidden": hidden,
        "heads": take("n_head"),
        "ffn_hidden": take("n_inner", 4 * hidden),
        "gated": False,
        "vocabulary": take("vocab_size"),
        "tied_embeddings": take("tie_word_embeddings", True),
    }
