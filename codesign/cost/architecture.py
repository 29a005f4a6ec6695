"""Sizes of a transformer: parameters and FLOPs per token. Floor 3.

In: a `Model` (one architecture) and parallel degrees as integer arrays. Out: counts as float arrays, no
seconds and no bytes.

A layer is described once, by the list of its matrix multiplications (`projections`, `expert_projections`).
Parameters, FLOPs, the shards of tensor parallelism and the time and memory of the layer all follow from that
list. Counted are the weight matrices and the gains of the norms; biases, learned positions and the gains of
norms on queries and keys are left out (under 0.1 % of the published totals). A mixture has `dense_layers`
dense layers first, then layers of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from codesign.spec.workload import Model

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Kind = Literal["dense", "mixture"]
Cut = Literal["column", "row", "none"]

MEGATRON_VOCABULARY_MULTIPLE = 128  # Megatron-LM, --make-vocab-size-divisible-by, default


@dataclass(frozen=True)
class Projection:
    """One matrix multiplication of a layer, `inputs` x `outputs` for each token.

    Attributes
    ----------
    cut
        How tensor parallelism cuts it: `column` cuts the outputs, `row` the inputs; `none` keeps the whole
        matrix on each rank, which then works on its own share of the sequence.
    kv_heads, kv_head_outputs
        The part of the outputs that belongs to key and value heads. A rank holds at least one of these heads,
        so with more ranks than heads this part is replicated.
    """

    name: str
    inputs: int
    outputs: int
    cut: Cut
    kv_heads: int = 0
    kv_head_outputs: int = 0

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs

    def local_inputs(self, tp: npt.ArrayLike) -> FloatArray:
        """Input width on one rank."""
        tp = np.asarray(tp, dtype=np.float64)
        return np.asarray(self.inputs / tp if self.cut == "row" else self.inputs * np.ones_like(tp))

    def local_outputs(self, tp: npt.ArrayLike) -> FloatArray:
        """Output width on one rank, replicated key and value heads included."""
        tp = np.asarray(tp, dtype=np.float64)
        if self.cut != "column":
            return np.asarray(self.outputs * np.ones_like(tp))
        kv = self.kv_heads * self.kv_head_outputs
        return np.asarray((self.outputs - kv) / tp + self.kv_head_outputs * local_kv_heads(self.kv_heads, tp))

    def local_parameters(self, tp: npt.ArrayLike) -> FloatArray:
        """Weights that one rank stores."""
        return self.local_inputs(tp) * self.local_outputs(tp)


def local_kv_heads(kv_heads: int, tp: npt.ArrayLike) -> FloatArray:
    """Key and value heads on one rank: an equal share, but one at least (frameworks that replicate)."""
    tp = np.asarray(tp, dtype=np.float64)
    return np.maximum(kv_heads / tp, 1.0) if kv_heads else np.zeros_like(tp)


def kinds(model: Model) -> tuple[Kind, ...]:
    """The kinds of layer that the model has."""
    if not model.experts:
        return ("dense",)
    return ("dense", "mixture") if model.dense_layers else ("mixture",)


def layer_counts(model: Model) -> dict[Kind, int]:
    """How many layers of each kind."""
    if not model.experts:
        return {"dense": model.layers}
    counts: dict[Kind, int] = {"dense": model.dense_layers, "mixture": model.layers - model.dense_layers}
    return {kind: counts[kind] for kind in kinds(model)}


def attention_projections(model: Model) -> tuple[Projection, ...]:
    """Matrix multiplications of attention around its core: queries, keys, values, output.

    Source: grouped queries, Ainslie et al. 2023, section 2; latent attention, DeepSeek-V2 (2024), section 2.1
    and appendix C. The two down-projections of latent attention are not cut by tensor parallelism.
    """
    latent = model.multi_latent
    if latent is None:
        queries, keys_values = model.heads * model.head_size, 2 * model.head_size
        return (
            Projection(
                "qkv",
                model.hidden,
                queries + model.kv_heads * keys_values,
                "column",
                model.kv_heads,
                keys_values,
            ),
            Projection("attention output", queries, model.hidden, "row"),
        )
    query_width = model.heads * (latent.nope_size + latent.rope_size)
    up_width = model.heads * (latent.nope_size + latent.value_size)
    queries_of_latent = (
        (
            Projection("query down", model.hidden, latent.q_rank, "none"),
            Projection("query up", latent.q_rank, query_width, "column"),
        )
        if latent.q_rank
        else (Projection("query", model.hidden, query_width, "column"),)
    )
    return (
        *queries_of_latent,
        Projection("key value down", model.hidden, latent.kv_rank + latent.rope_size, "none"),
        Projection("key value up", latent.kv_rank, up_width, "column"),
        Projection("attention output", model.heads * latent.value_size, model.hidden, "row"),
    )


def ffn_width(model: Model, kind: Kind) -> int:
    """Width of the feed-forward that every token passes: the dense one, or the shared experts together."""
    return model.ffn_hidden if kind == "dense" else model.shared_experts * model.expert_ffn_hidden


def projections(model: Model, kind: Kind = "dense") -> tuple[Projection, ...]:
    """Matrix multiplications of one layer that every token passes; routed experts are apart."""
    parts = list(attention_projections(model))
    if kind == "mixture":
        parts.append(Projection("router", model.hidden, model.experts, "none"))
    if width := ffn_width(model, kind):
        parts.extend(_feed_forward(model, width))
    return tuple(parts)


def expert_projections(model: Model) -> tuple[Projection, ...]:
    """Matrix multiplications of ONE routed expert, which lives whole on a rank."""
    return _feed_forward(model, model.expert_ffn_hidden)


FEED_FORWARD = ("ffn in", "ffn out")
"""Names of the matrices of a feed-forward."""


def _feed_forward(model: Model, width: int) -> tuple[Projection, ...]:
    fan = 2 if model.gated else 1
    return (
        Projection(FEED_FORWARD[0], model.hidden, fan * width, "column"),
        Projection(FEED_FORWARD[1], width, model.hidden, "row"),
    )


# ------------------------------------------------------------------------------------------------- parameters


def norm_parameters(model: Model) -> int:
    """Gains of the norms of one layer: two of hidden width, and those of the latents."""
    latent = model.multi_latent
    return 2 * model.hidden + (latent.q_rank + latent.kv_rank if latent is not None else 0)


def expert_parameters(model: Model) -> int:
    """Parameters of one routed expert."""
    return sum(matrix.parameters for matrix in expert_projections(model))


def layer_parameters(model: Model, kind: Kind = "dense", *, active: bool = False) -> int:
    """Parameters of one layer; with `active` only the `top_k` experts that a token passes."""
    shared = sum(matrix.parameters for matrix in projections(model, kind)) + norm_parameters(model)
    if kind == "dense":
        return shared
    return shared + (model.top_k if active else model.experts) * expert_parameters(model)


def local_layer_parameters(model: Model, tp: npt.ArrayLike, kind: Kind = "dense") -> FloatArray:
    """Parameters of a layer on one rank, routed experts apart: `tp` cuts matrices, not norms and router."""
    return np.asarray(sum(matrix.local_parameters(tp) for matrix in projections(model, kind)) + norm_parameters(model))


def embedding_parameters(model: Model) -> int:
    """The table of token vectors, unpadded."""
    return model.vocabulary * model.hidden


def head_parameters(model: Model) -> int:
    """The output matrix, unpadded; none of its own when it is tied to the embedding."""
    return 0 if model.tied_embeddings else model.vocabulary * model.hidden


def total_parameters(model: Model, *, active: bool = False) -> int:
    """Parameters of the model, unpadded, with the final norm.

    `active` counts what a token passes: `top_k` of the experts; embedding and head stay counted, as published
    figures do.
    """
    layers = sum(n * layer_parameters(model, kind, active=active) for kind, n in layer_counts(model).items())
    return layers + embedding_parameters(model) + head_parameters(model) + model.hidden


def active_parameters(model: Model) -> int:
    """Parameters that one token passes."""
    return total_parameters(model, active=True)


def padded_vocabulary(vocabulary: int, tp: npt.ArrayLike, multiple: int = MEGATRON_VOCABULARY_MULTIPLE) -> FloatArray:
    """Vocabulary after padding: the next multiple of `multiple * tp`.

    With `multiple` 1 the result over `tp` is the largest of uneven shards.
    Source: Megatron-LM, padding of the vocabulary in the tokenizer (`make_vocab_size_divisible_by * tp`).
    """
    step = multiple * np.asarray(tp, dtype=np.float64)
    return np.asarray(np.ceil(vocabulary / step) * step)


# ------------------------------------------------------------------------------------------------------ FLOPs


def layer_matmul_flops_per_token(model: Model, kind: Kind = "dense") -> float:
    """Forward FLOPs of the matrices of one layer for one token, two for each active weight.

    Source: Narayanan et al. 2021 (SC'21), appendix; mixtures count `top_k` and the shared experts.
    """
    flops = 2.0 * sum(matrix.parameters for matrix in projections(model, kind))
    return flops + 2.0 * model.top_k * expert_parameters(model) if kind == "mixture" else flops


def attention_flops_per_token(model: Model, sequence_length: npt.ArrayLike, *, causal_half: bool = True) -> FloatArray:
    """Forward FLOPs of the attention core of one layer for one token: scores and the weighted sum of values.

    The full square is 2 s a (d_qk + d_v), which is 4 s a d_h for equal sizes (Narayanan et al. 2021,
    appendix). With `causal_half`, and a causal model, half of it: what kernels that skip the masked half
    compute. With windowed layers it is the mean over the layers.
    """
    latent = model.multi_latent
    sizes = 2 * model.head_size
    if latent is not None:
        sizes = latent.nope_size + latent.rope_size + latent.value_size
    share = 0.5 if causal_half and model.causal else 1.0
    keys = share * np.asarray(sequence_length, dtype=np.float64)
    if model.windowed_layers:
        # A window narrower than what is seen anyway; layers of both kinds alternate, so the mean stands for each.
        part = model.windowed_layers / model.layers
        keys = (1.0 - part) * keys + part * np.minimum(keys, float(model.attention_window))
    return np.asarray(2.0 * model.heads * sizes * keys)


def feed_forward_flops_per_token(model: Model) -> float:
    """Forward FLOPs of the feed-forwards of all layers for one token, experts among them."""
    flops = 0.0
    for kind, count in layer_counts(model).items():
        passed = sum(matrix.parameters for matrix in projections(model, kind) if matrix.name in FEED_FORWARD)
        routed = model.top_k * expert_parameters(model) if kind == "mixture" else 0
        flops += 2.0 * count * (passed + routed)
    return flops


def head_flops_per_token(model: Model) -> float:
    """Forward FLOPs of the output matrix for one token, unpadded vocabulary, tied or not."""
    return 2.0 * model.hidden * model.vocabulary


def forward_flops_per_token(model: Model, sequence_length: npt.ArrayLike, *, causal_half: bool = True) -> FloatArray:
    """Forward FLOPs of the whole model for one token."""
    matrices = sum(n * layer_matmul_flops_per_token(model, kind) for kind, n in layer_counts(model).items())
    core = model.layers * attention_flops_per_token(model, sequence_length, causal_half=causal_half)
    return np.asarray(matrices + core + head_flops_per_token(model))


def model_flops_per_token(model: Model, sequence_length: npt.ArrayLike, *, causal_half: bool = True) -> FloatArray:
    """Model FLOPs of a training step for one token, the numerator of MFU.

    Convention: three times the forward (backward is twice), no recompute, and the causal half of attention.
    With `causal_half=False` it is the full-square convention of Narayanan et al. 2021, eq. 3, and of the
    figures that Megatron-LM logs.
    """
    return 3.0 * forward_flops_per_token(model, sequence_length, causal_half=causal_half)
