"""What a layer keeps in memory from its forward to its backward. Floor 3.

In: a `Model`, sequence length, micro-batch, degrees, recomputation. Out: bytes on one rank.

One documented list, `saved_tensors`, decides. With the attention matrix stored, f = 4h, as many key and value
heads as heads, no gate, and dropout, it reproduces Korthikanti et al. 2022, eq. 1 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture

if TYPE_CHECKING:
    from codesign.cost.architecture import FloatArray, Kind
    from codesign.spec.workload import Model

STATISTIC_BYTES = 4.0  # log-sum-exp of each query row, fp32 (Dao 2023, section 3.1)


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that a layer keeps from forward to backward, for one token.

    Attributes
    ----------
    elements
        Elements for one token, on all ranks together.
    shared_by_tp
        Cut by tensor parallelism alone; the others are cut only under sequence parallelism.
    attention_core, feed_forward
        Born inside the attention core, so selective recomputation drops it; or inside the feed-forward.
    kv_heads
        If not 0, the tensor has this many heads, and a rank holds one at least.
    """

    name: str
    elements: float
    element_bytes: float
    shared_by_tp: bool = False
    attention_core: bool = False
    kv_heads: int = 0
    feed_forward: bool = False

    def local_bytes(self, tp: npt.ArrayLike, *, sequence_parallel: bool = True) -> FloatArray:
        """Bytes for one token on one rank, before division by `cp`."""
        tp = np.asarray(tp, dtype=np.float64)
        everywhere = self.elements * self.element_bytes
        if self.kv_heads:
            return everywhere / self.kv_heads * architecture.local_kv_heads(self.kv_heads, tp)
        return np.asarray(everywhere / tp if self.shared_by_tp or sequence_parallel else everywhere * np.ones_like(tp))


def saved_tensors(
    model: Model,
    sequence_length: int,
    kind: Kind = "dense",
    *,
    attention_matrix: bool = False,
    dropout: bool = False,
) -> tuple[SavedTensor, ...]:
    """Everything that one layer keeps for one token, without recomputation.

    Parameters
    ----------
    attention_matrix
        Scores are kept in memory (no flash attention): 2 bytes a score, and 3 more with dropout.
    dropout
        Masks of one byte after attention and after the feed-forward.

    Source: Korthikanti et al. 2022, section 4.1, whose list this is for f = 4h ungated; a gate doubles the
    first product, grouped heads shrink keys and values, a mixture keeps each token once for every expert that
    it is sent to.
    """
    h = model.hidden
    tensors = [
        SavedTensor("input of the first norm", h, 2),
        SavedTensor("input of the attention projections", h, 2),
        *_attention_tensors(model),
    ]
    if attention_matrix:
        scores = float(model.heads * sequence_length)
        tensors.append(SavedTensor("softmax of the scores", scores, 2, shared_by_tp=True, attention_core=True))
        if dropout:
            tensors.append(SavedTensor("dropout mask of the scores", scores, 1, shared_by_tp=True, attention_core=True))
            tensors.append(SavedTensor("scores after dropout", scores, 2, shared_by_tp=True, attention_core=True))
    else:
        tensors.append(
            SavedTensor("softmax statistics", model.heads, STATISTIC_BYTES, shared_by_tp=True, attention_core=True)
        )
    tensors += [
        SavedTensor("input of the second norm", h, 2),
        SavedTensor("input of the feed-forward", h, 2),
    ]
    fan = 2 if model.gated else 1
    if width := architecture.ffn_width(model, kind):
        tensors += [
            SavedTensor("input of the activation", fan * width, 2, shared_by_tp=True, feed_forward=True),
            SavedTensor("output of the activation", width, 2, shared_by_tp=True, feed_forward=True),
        ]
    if kind == "mixture":
        # Experts live whole on a rank: their tokens are cut by the sequence shares of the ranks that sent
        # them.
        routed = model.top_k * model.expert_ffn_hidden
        tensors += [
            SavedTensor("router scores and probabilities", 2 * model.experts, 4, feed_forward=True),
            SavedTensor("tokens sent to experts", model.top_k * h, 2, feed_forward=True),
            SavedTensor("input of the experts' activation", fan * routed, 2, feed_forward=True),
            SavedTensor("output of the experts' activation", routed, 2, feed_forward=True),
            SavedTensor("tokens back from experts", model.top_k * h, 2, feed_forward=True),
        ]
    if dropout:
        tensors.append(SavedTensor("dropout mask after attention", h, 1))
        tensors.append(SavedTensor("dropout mask after the feed-forward", h, 1))
    return tuple(tensors)


def _attention_tensors(model: Model) -> list[SavedTensor]:
    latent = model.multi_latent
    if latent is None:
        queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
        return [
            SavedTensor("queries", queries, 2, shared_by_tp=True),
            SavedTensor("keys", keys, 2, shared_by_tp=True, kv_heads=model.kv_heads),
            SavedTensor("values", keys, 2, shared_by_tp=True, kv_heads=model.kv_heads),
            SavedTensor("input of the attention output", queries, 2, shared_by_tp=True),
        ]
    keys, values = model.heads * (latent.nope_size + latent.rope_size), model.heads * latent.value_size
    return [
        SavedTensor("latents before their norms", latent.q_rank + latent.kv_rank + latent.rope_size, 2),
        SavedTensor("latents after their norms", latent.q_rank + latent.kv_rank, 2),
        SavedTensor("queries", keys, 2, shared_by_tp=True),
        SavedTensor("keys", keys, 2, shared_by_tp=True),
        SavedTensor("values", values, 2, shared_by_tp=True),
        SavedTensor("input of the attention output", values, 2, shared_by_tp=True),
    ]


def activation_bytes(
    model: Model,
    sequence_length: int,
    micro_batch: npt.ArrayLike,
    tp: npt.ArrayLike,
    cp: npt.ArrayLike,
    recompute: npt.ArrayLike = "none",
    kind: Kind = "dense",
    *,
    sequence_parallel: bool = True,
    attention_matrix: bool = False,
    dropout: bool = False,
) -> FloatArray:
    """Bytes that one layer keeps for one micro-batch on one rank.

    `none` keeps all of `saved_tensors`; `selective` all but those of the attention core, `mlp` all but those inside
    the feed-forward; `full` the input of the layer.

    Source: Korthikanti et al. 2022, eq. 1 (none), 2 (tensor parallel), 4 (with sequence parallel), 5 and 6
    (selective), and section 5 (full: 2sbh, here cut by `tp` under sequence parallelism).
    """
    recompute = np.asarray(recompute)
    tokens = sequence_length * np.asarray(micro_batch, dtype=np.float64) / np.asarray(cp, dtype=np.float64)
    tensors = saved_tensors(model, sequence_length, kind, attention_matrix=attention_matrix, dropout=dropout)
    kept: FloatArray = np.asarray(0.0)
    for tensor in tensors:
        again = (recompute == "full") & (tensor is not tensors[0])
        again = again | ((recompute == "selective") & tensor.attention_core)
        again = again | ((recompute == "mlp") & tensor.feed_forward)
        kept = kept + ~again * tensor.local_bytes(tp, sequence_parallel=sequence_parallel)
    return np.asarray(kept * tokens)
