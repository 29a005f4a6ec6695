"""What a kind of recomputation runs again in the backward. Floor 3. In: kinds, as texts. Out: counts for arrays.

`none`; `selective`, the attention core; `mlp`, the feed-forward with its experts; `full`, whole layers; `full:N`, the
first N whole layers of each chunk of each stage. A layer that is not one of the N keeps everything.

Source: Korthikanti et al. 2022, section 5 (selective, full); Megatron-LM, `--recompute-modules mlp` and
`--recompute-method block` with `--recompute-num-layers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from codesign.cost import stages

if TYPE_CHECKING:
    from codesign.cost.architecture import FloatArray, Kind
    from codesign.spec.workload import Model

CORE_AGAIN = ("selective",)
FEED_FORWARD_AGAIN = ("mlp",)
LAYER_AGAIN = ("full",)
OF_A_LAYER = ("none", "selective", "mlp", "full")
"""What can happen to one layer."""

EVERY_LAYER = 1 << 20
"""Layers of a chunk that `full` runs again: all of them."""


def whole_layers(recompute: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Layers of each chunk that run again whole, at most: N of `full:N`, `EVERY_LAYER` of `full`, else 0."""
    kinds = np.asarray(recompute)
    names, inverse = np.unique(kinds, return_inverse=True)
    counts = [int(name[5:]) if name.startswith("full:") else EVERY_LAYER * (name == "full") for name in names.tolist()]
    return np.asarray(np.asarray(counts, dtype=np.int64)[inverse].reshape(kinds.shape))


def of_other_layers(recompute: npt.ArrayLike) -> npt.NDArray[np.str_]:
    """What happens to the layers that do not run again whole: `full:N` keeps everything of them."""
    kinds = np.asarray(recompute, dtype=np.str_)
    return np.asarray(np.where(whole_layers(kinds) > 0, np.where(kinds == "full", kinds, "none"), kinds))


def layers_of_kind(model: Model, kind: Kind, pp: int, virtual_stages: int, count: int) -> FloatArray:
    """Layers of a kind that run again whole in each chunk of each stage, shape (pp, virtual stages).

    The first `count` layers of a chunk; dense layers of a mixture stand in front.
    """
    layers = np.asarray(stages.layers_of_stages(model.layers, pp, virtual_stages), dtype=np.float64)
    dense = np.asarray(stages.layers_of_kind(model, "dense", pp, virtual_stages), dtype=np.float64)
    again = np.minimum(layers, float(count))
    of_dense = np.minimum(again, dense)
    if not model.experts:
        return np.asarray(again)
    return np.asarray(of_dense if kind == "dense" else again - of_dense)


def layers_in_flight(
    model: Model,
    pp: npt.ArrayLike,
    virtual_stages: npt.ArrayLike,
    micro_batches: npt.ArrayLike,
    recompute: npt.ArrayLike,
    *,
    stage: npt.ArrayLike,
    kind: Kind,
    schedule: npt.ArrayLike = "1f1b",
    whole: bool,
) -> FloatArray:
    """As `stages.layers_in_flight`, of the layers that run again whole under `full:N`, or of all others."""
    pp, v = np.asarray(pp, dtype=np.int64), np.asarray(virtual_stages, dtype=np.int64)
    m, index = np.asarray(micro_batches, dtype=np.int64), stages.stage_index(stage, pp)
    held = stages.chunks_in_flight(pp, 1, m, stage=index, schedule=schedule)
    counts = np.where(np.asarray(recompute) == "full", 0, np.minimum(whole_layers(recompute), model.layers))

    def peak(p: int, chunks: int, micro: int, i: int, count: int) -> float:
        if not stages.split_is_legal(model.layers, p, chunks):
            return float("nan")
        if not 0 <= i < p:
            return 0.0
        again = layers_of_kind(model, kind, p, chunks, count)[i]
        sizes = again if whole else np.asarray(stages.layers_of_kind(model, kind, p, chunks)[i]) - again
        # One chunk: what the schedule holds multiplies it below.
        return float(sizes[0]) if chunks == 1 else stages.peak_layers(tuple(int(n) for n in sizes), p, micro, i)

    found = stages.each_combination(peak, pp, v, np.minimum(m, stages.ROUNDS * pp), index, counts)
    return np.asarray(np.where(v == 1, held, 1.0) * found)


def least_share(
    model: Model, kind: Kind, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike, recompute: npt.ArrayLike
) -> FloatArray:
    """Share of a chunk's layers of a kind that run again whole, in the chunk where it is least; 0 where no split is."""

    def least(p: int, v: int, count: int) -> float:
        if not count or not stages.split_is_legal(model.layers, p, v):
            return 0.0
        there = np.asarray(stages.layers_of_kind(model, kind, p, v), dtype=np.float64)
        again = layers_of_kind(model, kind, p, v, count)
        some = there > 0
        return float(np.min(again[some] / there[some])) if np.any(some) else 0.0

    # A chunk never has more layers than the model, so fewer distinct counts are looked at.
    counts = np.minimum(whole_layers(recompute), model.layers)
    return stages.each_combination(least, pp, virtual_stages, counts)
