"""Workloads: a model, how it is trained, and what is stated of its parallel plan. Floor 1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from codesign import catalogue
from codesign.spec import huggingface
from codesign.spec.hardware import Precision
from codesign.spec.stated import PRESET, Name, OneOrMore, Stated, Tokens, named, preset, refused, whole

Framework = Literal["megatron", "torchtitan", "deepspeed"]
RECOMPUTE = ("none", "selective", "mlp", "full")
"""What is computed again in the backward: nothing, the attention core, the feed-forward, whole layers. Beside them
`full:N`: whole layers, the first N of each stage's (of each virtual stage's) layers (Megatron-LM, the block method)."""
RECOMPUTE_FORM = r"^(none|selective|mlp|full(:[1-9][0-9]{0,3})?)$"
Schedule = Literal["1f1b", "zb-h1"]
"""Order of a pipeline's operations: 1F1B (interleaved with virtual stages), or ZB-H1, which splits the backward and
computes the gradients of weights later (Qi et al. 2023, section 2)."""
ShardWithin = Literal["group", "domain"]
"""Ranks that what ZeRO shards is spread over: the whole data-parallel group, or its part in one NVLink domain, with
copies beyond (hybrid sharding, HSDP: Zhao et al. 2023, section 3.2.2)."""
ContextExchange = Literal["ring", "all-gather"]
"""How context parallelism moves keys and values: around a ring beside the attention core (Liu et al. 2023), or by an
all-gather before it (Llama 3 paper 2024, section 3.3.2)."""
Tuning = Literal["full", "lora"]
"""What is trained: all weights, or low-rank adapters beside frozen ones (Hu et al. 2021); adapters count as nothing."""
Attention = Literal["flash", "unfused"]
"""Kernel of the attention core: fused, or scores kept in memory (training software up to 2022)."""


class MultiLatent(Stated):
    """Latent attention (DeepSeek-V2, 2024, section 2.1): ranks of the latents, sizes of a head; `q_rank` 0: none."""

    q_rank: Annotated[int, whole(0, 1 << 20)]
    kv_rank: Annotated[int, whole(1, 1 << 20)]
    nope_size: Annotated[int, whole(1, 1 << 16)]
    rope_size: Annotated[int, whole(0, 1 << 16)]
    value_size: Annotated[int, whole(1, 1 << 16)]


class Model(Stated):
    """One transformer. `kv_heads` is `heads`, and `head_size` is `hidden / heads`, unless stated.

    `gated`: three matrices in the feed-forward (SwiGLU), else two. A mixture has `experts` of which a token passes
    `top_k`, each `expert_ffn_hidden` wide, `shared_experts` that all tokens pass, and `dense_layers` before them.
    `windowed_layers` of the layers, spread evenly, look at the last `attention_window` tokens only.
    """

    name: Name
    layers: Annotated[int, whole(1, 4096)]
    hidden: Annotated[int, whole(1, 1 << 20)]
    heads: Annotated[int, whole(1, 1 << 14)]
    kv_heads: Annotated[int, whole(1, 1 << 14)]
    head_size: Annotated[int, whole(1, 1 << 16)]
    ffn_hidden: Annotated[int, whole(0, 1 << 24)]
    gated: bool
    vocabulary: Annotated[int, whole(1, 1 << 24)]
    tied_embeddings: bool
    experts: Annotated[int, whole(0, 1 << 16)] = 0
    top_k: Annotated[int, whole(0, 1 << 16)] = 0
    expert_ffn_hidden: Annotated[int, whole(0, 1 << 24)] = 0
    shared_experts: Annotated[int, whole(0, 1 << 16)] = 0
    dense_layers: Annotated[int, whole(0, 4096)] = 0
    causal: bool = True
    attention_window: Annotated[int, whole(0, 1 << 24)] = 0
    windowed_layers: Annotated[int, whole(0, 4096)] = 0
    multi_latent: MultiLatent | None = None

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        heads, hidden = data.get("heads"), data.get("hidden")
        if "kv_heads" not in data and heads is not None:
            data["kv_heads"] = heads
        divides = type(heads) is int and type(hidden) is int and heads > 0 and hidden % heads == 0
        if "head_size" not in data and divides:
            data["head_size"] = hidden // heads
        return data

    @model_validator(mode="after")
    def _coherent(self) -> Model:
        if self.heads % self.kv_heads:
            raise refused(f"heads {self.heads}, kv_heads {self.kv_heads}", "kv_heads that divide heads")
        if self.experts and not (1 <= self.top_k <= self.experts and self.expert_ffn_hidden):
            raise refused(
                f"experts {self.experts}, top_k {self.top_k}, expert_ffn_hidden {self.expert_ffn_hidden}",
                "top_k from 1 to experts, and the width of an expert",
            )
        if not self.experts and (self.top_k or self.expert_ffn_hidden or self.shared_experts or self.dense_layers):
            raise refused("fields of experts without 'experts'", "the number of experts, or none of these fields")
        if self.dense_layers > self.layers:
            raise refused(f"dense_layers {self.dense_layers}", f"at most the {self.layers} layers")
        if self.windowed_layers > self.layers or bool(self.windowed_layers) != bool(self.attention_window):
            raise refused(
                f"windowed_layers {self.windowed_layers}, attention_window {self.attention_window}",
                f"both, with at most the {self.layers} layers, or neither",
            )
        if not self.ffn_hidden and (not self.experts or self.dense_layers):
            raise refused("ffn_hidden 0", "the width of the feed-forward of dense layers")
        return self


def model_named(name: str) -> Model:
    """A model of the catalogue. `UnknownNameError` if it has none of that name."""
    return Model.model_validate(catalogue.load().values("models", name))


def _recompute(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(RECOMPUTE_FORM, value):
        return value
    raise refused(f"{value!r}", f"one of {', '.join(RECOMPUTE)}, or full:N for N layers of each stage")


Recompute = Annotated[str, BeforeValidator(_recompute), Field(pattern=RECOMPUTE_FORM)]


class PlanChoices(Stated):
    """What is stated of the parallel plan: a value pins a decision, a list restricts it, none leaves it free."""

    tp: OneOrMore[Annotated[int, whole(1, 1 << 20)]] | None = None
    cp: OneOrMore[Annotated[int, whole(1, 1 << 20)]] | None = None
    ep: OneOrMore[Annotated[int, whole(1, 1 << 20)]] | None = None
    pp: OneOrMore[Annotated[int, whole(1, 4096)]] | None = None
    dp: OneOrMore[Annotated[int, whole(1, 1 << 20)]] | None = None
    micro_batch: OneOrMore[Annotated[int, whole(1, 1 << 20)]] | None = None
    virtual_stages: OneOrMore[Annotated[int, whole(1, 4096)]] | None = None
    recompute: OneOrMore[Recompute] | None = None
    zero: OneOrMore[Annotated[int, whole(0, 3)]] | None = None
    schedule: OneOrMore[Schedule] | None = None
    shard_within: OneOrMore[ShardWithin] | None = None
    expert_tp: OneOrMore[Annotated[int, whole(1, 1 << 12)]] | None = None
    context_exchange: OneOrMore[ContextExchange] | None = None


def _model(value: Any, info: ValidationInfo) -> Any:
    """A preset, a Hugging Face configuration, or the fields."""
    if isinstance(value, str) and value.endswith(".json"):
        value = {"huggingface": value}
    if isinstance(value, Mapping) and "huggingface" in value:
        if PRESET in value:
            raise refused("both 'preset' and 'huggingface'", "one of them")
        file = value["huggingface"]
        if not isinstance(file, str):
            raise refused(f"huggingface: {file!r}", "the path of a config.json")
        replaced = named(Model, {key: each for key, each in value.items() if key != "huggingface"})
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise refused(f"'{file}'", "a preset or the fields: there is no folder to find the file in")
        try:
            return huggingface.read(Path(folder) / file) | replaced
        except huggingface.ConfigurationError as problem:
            raise refused(f"'{file}'", problem.expected, problem.hint) from None
    return preset("models", Model, value)


class Workload(Stated):
    """One training run.

    Attributes
    ----------
    global_batch : sequences a step; every micro-batch of it is played, so there is a limit.
    tokens : of the whole run; needed for the time and the cost of it.
    precision : of the matrices of the layers.
    framework : whose rules a plan must keep.
    attention : kernel of the attention core.
    sequence_parallel : what is done token by token is shared by the tensor-parallel ranks.
    tuning : what is trained.
    """

    name: Annotated[Name, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "pretrain"
    model: Annotated[Model, BeforeValidator(_model)]
    sequence_length: Annotated[int, whole(1, 1 << 24)]
    global_batch: Annotated[int, whole(1, 1 << 17)]
    tokens: Tokens | None = None
    precision: Precision = "bf16"
    framework: Framework = "megatron"
    attention: Attention = "flash"
    sequence_parallel: bool = True
    tuning: Tuning = "full"
    plan: PlanChoices = PlanChoices()
