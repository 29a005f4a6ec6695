"""Seconds of computation on one GPU: a layer, the embedding, the head, the optimizer. Floor 3.

In: a `Model`, a `Gpu` with its fitted efficiencies, and micro-batch, tensor and context parallel degrees as
arrays that broadcast. Out: `LayerSeconds`, arrays of seconds in four parts. No communication: `collectives`
has that.

A group of matrix multiplications takes max(FLOPs / (peak * eta), bytes / memory bandwidth), with

    eta = matmul_ceiling * tokens / (tokens + tokens_half) * width / (width + width_half)

where `tokens` are those of one micro-batch on one GPU and `width` is the hidden width over `tp`: a smooth,
monotone stand-in for tile and wave quantisation. With sequence parallelism what is done token by token is
shared by `tp` as well as `cp`. Attention core and head run in bf16, in narrower recipes too.

Source: Narayanan et al. 2021 (SC'21) for the FLOPs, Williams et al. 2009 (roofline) for the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from codesign.cost.architecture import FloatArray, Kind, Projection
    from codesign.spec.hardware import Gpu, Precision
    from codesign.spec.limits import Assumptions
    from codesign.spec.workload import Attention, Model, Tuning

# Width of the formats, of both operands of a product; blocks of 32 (mxfp8) or 16 (nvfp4) share a scale of a byte.
OPERAND_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
# To narrow an input of 16 bit: read it, write it plain and transposed (NVIDIA Transformer Engine documentation).
NARROWING_BYTES: Mapping[str, float] = {"bf16": 0.0, "fp8": 4.0, "mxfp8": 4.0625, "nvfp4": 3.125}
RESULT_BYTES = 2.0  # results of multiplications, norms and residuals are bf16 in both recipes

# Gradients of inputs and of weights, each as much as the forward (Narayanan et al. 2021, appendix).
BACKWARD_TO_FORWARD = 2.0
MATMUL_BACKWARD_TO_FORWARD: Mapping[str, float] = {"full": 2.0, "lora": 1.0}
# A fused backward computes the scores again: five products against two (Dao-AILab/flash-attention,
# benchmarks/benchmark_flash_attention.py, which counts 2.5; Dao 2023, section 4.1).
ATTENTION_BACKWARD_TO_FORWARD: Mapping[str, float] = {"flash": 2.5, "unfused": 2.0}
# Without fusion each score passes memory: 2 bytes written by the product, 2 + 2 by the softmax, 2 + 3 by dropout with
# its mask, 2 read by the second product. The causal half is not skipped.
UNFUSED_SCORE_BYTES = 13.0
# Tensor cores take rows of 16 bytes (NVIDIA, "Matrix multiplication background", section on tensor core requirements):
# heads that are no multiple of 8 wide were multiplied by the vector units, 19.5 of the 312 TFLOP/s of an A100.
TENSOR_CORE_MULTIPLE = 8
VECTOR_UNITS_SHARE = 19.5 / 312.0

# Passes over a 16-bit tensor, reads and writes counted, in the forward of one layer.
NORM_PASSES = 2  # read, write
RESIDUAL_PASSES = 3  # read both terms, write the sum
ROTARY_PASSES = 2  # read, write, over queries and keys
ACTIVATION_PASSES = {True: 3, False: 2}  # gated: read gate and value, write the product; else read, write
DISPATCH_PASSES = 4  # routed copies of a token: read and write on the way out, read and write on the way back

# Loss on each logit, forward: cast to fp32 (2 + 4), maximum (4), exponent and its sum (4 + 4); backward: read
# the fp32 probability, write the bf16 gradient (4 + 2).
LOSS_FORWARD_BYTES = 18.0
LOSS_BACKWARD_BYTES = 6.0


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds by part; the arrays broadcast against each other."""

    matmul_s: FloatArray
    attention_s: FloatArray
    elementwise_s: FloatArray
    launch_s: FloatArray
    feed_forward_s: FloatArray | float = 0.0
    """Of the total: matrices and activation of the feed-forward and of the experts."""

    @property
    def total_s(self) -> FloatArray:
        """All four parts; they follow one another on one stream."""
        return np.asarray(self.matmul_s + self.attention_s + self.elementwise_s + self.launch_s)

    def __add__(self, other: LayerSeconds) -> LayerSeconds:
        return LayerSeconds(
            np.asarray(self.matmul_s + other.matmul_s),
            np.asarray(self.attention_s + other.attention_s),
            np.asarray(self.elementwise_s + other.elementwise_s),
            np.asarray(self.launch_s + other.launch_s),
            np.asarray(self.feed_forward_s + other.feed_forward_s),
        )


def matmul_efficiency(
    gpu: Gpu, tokens: npt.ArrayLike, width: npt.ArrayLike, precision: Precision = "bf16"
) -> FloatArray:
    """Share of the peak that a matrix multiplication of this shape reaches, at most the ceiling of its format.

    The two halves are fitted figures of the GPU; a half of 0 switches the curve off.
    """
    fit = gpu.efficiency
    tokens, width = np.asarray(tokens, dtype=np.float64), np.asarray(width, dtype=np.float64)
    ceiling = fit.ceiling(precision)
    return np.asarray(ceiling * tokens / (tokens + fit.tokens_half) * width / (width + fit.width_half))


def with_software(gpu: Gpu, constants: Assumptions) -> Gpu:
    """The GPU as software sees it: a share of the fitted rates of kernels, and of the gaps between them."""
    kernel_share = constants.kernel_share
    if kernel_share == constants.attention_share == constants.launch_share == 1.0:
        return gpu
    fit = gpu.efficiency
    names = ("matmul_ceiling", "matmul_ceiling_fp8", "matmul_ceiling_mxfp8", "matmul_ceiling_nvfp4",
             "attention_ceiling", "memory_ceiling")  # fmt: skip
    slower = {name: kernel_share * share for name in names if (share := getattr(fit, name)) is not None}
    slower["attention_ceiling"] *= constants.attention_share
    slower["launch_s"] = constants.launch_share * fit.launch_s
    return gpu.model_copy(update={"efficiency": fit.model_copy(update=slower)})


def host_forward_s(constants: Assumptions, kind: Kind, tp: npt.ArrayLike) -> FloatArray:
    """Seconds in which the host issues the forward of a layer; no layer runs faster.

    At each tensor-parallel collective all hosts of the group wait for the slowest: an empirical growth with the cube of
    the others, `host_skew` at 8 ranks, the most that share a server's hosts.
    """
    others = (np.minimum(np.asarray(tp, dtype=np.float64), 8.0) - 1.0) / 7.0
    layer_s = constants.host_layer_s * (1.0 + constants.host_skew * others**3)
    return np.asarray(layer_s + constants.host_mixture_s * (kind == "mixture"))


def tokens_per_gpu(sequence_length: int, micro_batch: npt.ArrayLike, cp: npt.ArrayLike) -> FloatArray:
    """Tokens of one micro-batch that pass the matrices of one GPU."""
    return np.asarray(sequence_length * np.asarray(micro_batch, dtype=np.float64) / np.asarray(cp, dtype=np.float64))


def layer_forward(
    model: Model,
    sequence_length: int,
    micro_batch: npt.ArrayLike,
    tp: npt.ArrayLike,
    cp: npt.ArrayLike,
    gpu: Gpu,
    precision: Precision,
    *,
    kind: Kind = "dense",
    ep: npt.ArrayLike = 1,
    expert_tp: npt.ArrayLike = 1,
    imbalance: float = 1.0,
    attention: Attention = "flash",
    sequence_parallel: bool = True,
) -> LayerSeconds:
    """Forward of one layer for one micro-batch on one GPU.

    Parameters
    ----------
    micro_batch, tp, cp, ep
        Sequences in a micro-batch and degrees, arrays that broadcast.
    precision
        Of the matrices.
    attention, sequence_parallel
        Kernel of the attention core; whether what is done token by token is shared by `tp`.
    imbalance
        Tokens of the busiest rank of routed experts over the mean, 1 when balanced; only for mixtures.
    """
    tp, cp = np.asarray(tp, dtype=np.float64), np.asarray(cp, dtype=np.float64)
    tokens = tokens_per_gpu(sequence_length, micro_batch, cp)
    width = model.hidden / tp
    matmul_s: FloatArray = np.asarray(0.0)
    feed_forward_s = activation_bytes_per_token(model, kind) / tp * tokens / _memory_rate(gpu)
    for matrix in architecture.projections(model, kind):
        seconds = _matmul_s(matrix, tokens, width, tp, gpu, precision)
        matmul_s = matmul_s + seconds
        if matrix.name in architecture.FEED_FORWARD:
            feed_forward_s = feed_forward_s + seconds
    if kind == "mixture":
        seconds = _experts_s(model, tokens, tp, ep, imbalance, gpu, precision, expert_tp)
        matmul_s, feed_forward_s = matmul_s + seconds, feed_forward_s + seconds
    shared = elementwise_bytes_per_token(model, kind, precision) / tp
    if not sequence_parallel:
        shared = shared + replicated_bytes_per_token(model) * (1.0 - 1.0 / tp)
    return LayerSeconds(
        matmul_s=matmul_s,
        attention_s=_attention_s(model, sequence_length, tokens, tp, gpu, attention),
        elementwise_s=np.asarray(shared * tokens / _memory_rate(gpu)),
        launch_s=np.full(matmul_s.shape, gpu.efficiency.launch_s),
        feed_forward_s=np.asarray(feed_forward_s),
    )


def layer_backward(forward: LayerSeconds, attention: Attention = "flash", tuning: Tuning = "full") -> LayerSeconds:
    """Backward of what took `forward`: twice each part, a fused attention core two and a half times.

    With adapters the weights are frozen and have no gradients: matrices once.
    """
    return LayerSeconds(
        matmul_s=np.asarray(MATMUL_BACKWARD_TO_FORWARD[tuning] * forward.matmul_s),
        attention_s=np.asarray(ATTENTION_BACKWARD_TO_FORWARD[attention] * forward.attention_s),
        elementwise_s=np.asarray(BACKWARD_TO_FORWARD * forward.elementwise_s),
        launch_s=np.asarray(BACKWARD_TO_FORWARD * forward.launch_s),
    )


def weight_gradients_s(forward: LayerSeconds, tuning: Tuning = "full") -> FloatArray:
    """The part of the backward that computes gradients of weights: as much as the matrices' forward, if they train."""
    return np.asarray((MATMUL_BACKWARD_TO_FORWARD[tuning] - 1.0) * forward.matmul_s)


def layer_recompute(forward: LayerSeconds, recompute: npt.ArrayLike) -> LayerSeconds:
    """What a kind of recomputation adds to one layer: `full` the whole forward again, `selective` the attention core
    again, `mlp` the feed-forward again, which is counted with the matrices.

    Source: Korthikanti et al. 2022, section 5; for `mlp`, see `codesign.cost.recompute`.
    """
    recompute = np.asarray(recompute)
    full = (recompute == "full").astype(np.float64)
    core = full + (recompute == "selective")
    return LayerSeconds(
        matmul_s=np.asarray(full * forward.matmul_s + (recompute == "mlp") * forward.feed_forward_s),
        attention_s=np.asarray(core * forward.attention_s),
        elementwise_s=np.asarray(full * forward.elementwise_s),
        launch_s=np.asarray(full * forward.launch_s),
    )


def replicated_bytes_per_token(model: Model) -> float:
    """The part of `elementwise_bytes_per_token` that every tensor-parallel rank does without sequence parallelism."""
    return RESULT_BYTES * (NORM_PASSES + RESIDUAL_PASSES) * 2 * model.hidden


def activation_bytes_per_token(model: Model, kind: Kind = "dense") -> float:
    """The part of `elementwise_bytes_per_token` that the activations of feed-forward and experts pass."""
    width = architecture.ffn_width(model, kind)
    if kind == "mixture":
        width += model.top_k * model.expert_ffn_hidden
    return RESULT_BYTES * ACTIVATION_PASSES[model.gated] * width


def elementwise_bytes_per_token(model: Model, kind: Kind = "dense", precision: Precision = "bf16") -> float:
    """Bytes that pass memory for one token in the forward of one layer, outside matrices and attention core.

    Two norms, two residual sums, rotary positions on queries and keys, the activation of the feed-forward,
    in a mixture the routed copies, and in narrow formats the narrowing of what goes into matrices. Results are
    16 bit. Before division by `cp * tp`.
    """
    latent = model.multi_latent
    rotary = (
        (model.heads + model.kv_heads) * model.head_size if latent is None else (model.heads + 1) * latent.rope_size
    )
    latents = 0 if latent is None else latent.q_rank + latent.kv_rank
    passed = NORM_PASSES * (2 * model.hidden + latents) + RESIDUAL_PASSES * 2 * model.hidden + ROTARY_PASSES * rotary
    if kind == "mixture":
        passed += DISPATCH_PASSES * model.top_k * model.hidden
    inputs = sum(matrix.inputs for matrix in architecture.projections(model, kind))
    if kind == "mixture":
        inputs += model.top_k * sum(matrix.inputs for matrix in architecture.expert_projections(model))
    return RESULT_BYTES * passed + activation_bytes_per_token(model, kind) + NARROWING_BYTES[precision] * inputs


# --------------------------------------------------------------------------------- embedding, head, optimizer


def embedding_forward(
    model: Model, sequence_length: int, micro_batch: npt.ArrayLike, cp: npt.ArrayLike, gpu: Gpu
) -> LayerSeconds:
    """Lookup for one micro-batch: read and write a vector a token, on every rank of the tensor group."""
    tokens = tokens_per_gpu(sequence_length, micro_batch, cp)
    zero = np.zeros_like(tokens)
    seconds = RESULT_BYTES * 2 * model.hidden * tokens / _memory_rate(gpu)
    return LayerSeconds(zero, zero, np.asarray(seconds), zero)


def embedding_backward(forward: LayerSeconds) -> LayerSeconds:
    """Scatter of the gradients: twice the lookup."""
    return layer_backward(forward)


def head_forward(
    model: Model,
    sequence_length: int,
    micro_batch: npt.ArrayLike,
    tp: npt.ArrayLike,
    cp: npt.ArrayLike,
    gpu: Gpu,
    vocabulary_multiple: int = architecture.MEGATRON_VOCABULARY_MULTIPLE,
) -> LayerSeconds:
    """Final norm, output matrix over the padded vocabulary, and loss, for one micro-batch. bf16."""
    matmul_s, norm_s, logits = _head(model, sequence_length, micro_batch, tp, cp, gpu, vocabulary_multiple)
    loss_s = LOSS_FORWARD_BYTES * logits / _memory_rate(gpu)
    zero = np.zeros_like(matmul_s)
    return LayerSeconds(matmul_s, zero, np.asarray(norm_s + loss_s), zero)


def head_backward(
    model: Model,
    sequence_length: int,
    micro_batch: npt.ArrayLike,
    tp: npt.ArrayLike,
    cp: npt.ArrayLike,
    gpu: Gpu,
    vocabulary_multiple: int = architecture.MEGATRON_VOCABULARY_MULTIPLE,
) -> LayerSeconds:
    """Backward of the head: twice matrix and norm; the loss has its own count of bytes."""
    matmul_s, norm_s, logits = _head(model, sequence_length, micro_batch, tp, cp, gpu, vocabulary_multiple)
    loss_s = LOSS_BACKWARD_BYTES * logits / _memory_rate(gpu)
    zero = np.zeros_like(matmul_s)
    return LayerSeconds(
        np.asarray(BACKWARD_TO_FORWARD * matmul_s),
        zero,
        np.asarray(BACKWARD_TO_FORWARD * norm_s + loss_s),
        zero,
    )


def optimizer_step_s(
    local_parameters: npt.ArrayLike,
    shards: npt.ArrayLike,
    zero: npt.ArrayLike,
    gpu: Gpu,
    assumptions: Assumptions,
) -> FloatArray:
    """Adam on the parameters of one rank: read gradients and states, write states and weights.

    Parameters
    ----------
    local_parameters
        Parameters on the rank before sharding over the data-parallel group.
    shards
        Ranks of that group, `dp * cp`; divides the work from ZeRO stage 1 on (Rajbhandari et al. 2020,
        section 5).
    """
    moved = assumptions.gradient_bytes + 2 * assumptions.optimizer_bytes + assumptions.weight_bytes
    share = np.where(np.asarray(zero) >= 1, 1.0 / np.asarray(shards, dtype=np.float64), 1.0)
    return np.asarray(np.asarray(local_parameters, dtype=np.float64) * share * moved / _memory_rate(gpu))


# ------------------------------------------------------------------------------------------------------ parts


def _memory_rate(gpu: Gpu) -> float:
    return gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.memory_ceiling


def _roofline(flops: FloatArray, moved_bytes: FloatArray, rate: FloatArray, gpu: Gpu) -> FloatArray:
    return np.maximum(flops / rate, moved_bytes / _memory_rate(gpu))


def _matmul_s(
    matrix: Projection, tokens: FloatArray, width: FloatArray, tp: FloatArray, gpu: Gpu, precision: Precision
) -> FloatArray:
    inputs, outputs = matrix.local_inputs(tp), matrix.local_outputs(tp)
    rows = tokens / tp if matrix.cut == "none" else tokens
    operand = OPERAND_BYTES[precision]
    moved = operand * inputs * outputs + rows * (operand * inputs + RESULT_BYTES * outputs)
    rate = gpu.sustained(precision) * matmul_efficiency(gpu, tokens, width, precision)
    return _roofline(2.0 * rows * inputs * outputs, moved, rate, gpu)


def _experts_s(
    model: Model,
    tokens: FloatArray,
    tp: FloatArray,
    ep: npt.ArrayLike,
    imbalance: float,
    gpu: Gpu,
    precision: Precision,
    expert_tp: npt.ArrayLike = 1,
) -> FloatArray:
    """Grouped multiplications of the E / ep experts of a rank, over its b s k / (cp tp) routed tokens.

    Expert tensor parallelism cuts the width of the experts; the ranks of such a group work on the tokens of all.
    """
    ep, cut = np.asarray(ep, dtype=np.float64), np.asarray(expert_tp, dtype=np.float64)
    routed = imbalance * tokens * model.top_k / tp * cut
    local_experts = model.experts / ep
    width = np.minimum(float(model.hidden), model.expert_ffn_hidden / cut)
    rate = gpu.sustained(precision) * matmul_efficiency(gpu, routed / local_experts, width, precision)
    fit = gpu.efficiency
    rate = rate * (fit.grouped_ceiling if precision == "bf16" else fit.grouped_ceiling_narrow)
    operand = OPERAND_BYTES[precision]
    seconds: FloatArray = np.asarray(0.0)
    for matrix in architecture.expert_projections(model):
        parameters = matrix.parameters / cut
        moved = operand * parameters * local_experts
        moved = moved + routed * (operand * matrix.local_inputs(cut) + RESULT_BYTES * matrix.local_outputs(cut))
        seconds = seconds + _roofline(2.0 * routed * parameters, moved, rate, gpu)
    return seconds


def _attention_s(
    model: Model, sequence_length: int, tokens: FloatArray, tp: FloatArray, gpu: Gpu, attention: Attention
) -> FloatArray:
    if attention == "unfused":
        return _unfused_attention_s(model, sequence_length, tokens, tp, gpu)
    latent = model.multi_latent
    if latent is None:
        heads_moved = 2 * model.heads / tp + 2 * architecture.local_kv_heads(model.kv_heads, tp)
        moved = RESULT_BYTES * heads_moved * model.head_size
    else:
        moved = RESULT_BYTES * model.heads / tp * 2 * (latent.nope_size + latent.rope_size + latent.value_size)
    flops = architecture.attention_flops_per_token(model, sequence_length) * tokens / tp
    rate = np.asarray(gpu.sustained("bf16") * gpu.efficiency.attention_ceiling)
    return _roofline(flops, np.asarray(moved * tokens), rate, gpu)


def _unfused_attention_s(
    model: Model, sequence_length: int, tokens: FloatArray, tp: FloatArray, gpu: Gpu
) -> FloatArray:
    """Two products of batched heads and what passes memory between them, one after the other; no half is skipped."""
    heads = model.heads / tp
    scores = heads * sequence_length * tokens
    flops = architecture.attention_flops_per_token(model, sequence_length, causal_half=False) * tokens / tp
    rate = gpu.sustained("bf16") * gpu.efficiency.ceiling("bf16")
    if model.head_size % TENSOR_CORE_MULTIPLE:
        rate = gpu.sustained("bf16") * VECTOR_UNITS_SHARE
    return np.asarray(flops / rate + UNFUSED_SCORE_BYTES * scores / _memory_rate(gpu))


def _head(
    model: Model,
    sequence_length: int,
    micro_batch: npt.ArrayLike,
    tp: npt.ArrayLike,
    cp: npt.ArrayLike,
    gpu: Gpu,
    vocabulary_multiple: int,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of the matrix, seconds of the final norm, logits on the rank."""
    tp = np.asarray(tp, dtype=np.float64)
    tokens = tokens_per_gpu(sequence_length, micro_batch, cp)
    columns = architecture.padded_vocabulary(model.vocabulary, tp, vocabulary_multiple) / tp
    operand = OPERAND_BYTES["bf16"]
    moved = operand * model.hidden * (columns + tokens) + RESULT_BYTES * tokens * columns
    # The head cuts the vocabulary and keeps the hidden width whole, so its narrow side is the lesser of the
    # two.
    rate = gpu.sustained("bf16") * matmul_efficiency(gpu, tokens, np.minimum(model.hidden, columns))
    matmul_s = _roofline(2.0 * tokens * model.hidden * columns, moved, rate, gpu)
    norm_s = RESULT_BYTES * NORM_PASSES * model.hidden * tokens / tp / _memory_rate(gpu)
    return matmul_s, np.asarray(norm_s), np.asarray(tokens * columns)
