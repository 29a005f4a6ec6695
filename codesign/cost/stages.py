"""Layers on the stages of a pipeline, and how many of them hold activations at once. Floor 3.

In: layers or a `Model`, pipeline degree, virtual stages, micro-batches, stage index, as integer arrays. Out:
counts as float arrays.

`layers_of_stages` says which split is meant, layer by layer; the other functions give the same counts for
arrays. Where the layers have no legal split the counts are NaN, so that no later sum can pass for a result.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codesign.cost.architecture import kinds, layer_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from codesign.cost.architecture import BoolArray, FloatArray, Kind
    from codesign.spec.workload import Model

MOST_LAYERS_FOR_ENDS = 6
"""Embedding and loss may count as up to three layers each in the split.

One each: Megatron-LM, `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`. Two each:
the published split of 92 layers into [10, 12, 12, 12, 12, 12, 12, 10] (NVIDIA-NeMo/Megatron-Bridge PR#5551), by
`--decoder-first-pipeline-num-layers` or an explicit layout. Three each: DeepSpeed balances stages by parameters, and an
embedding of 250,000 words has as many as three layers of hidden width 7,000.
"""


def layers_for_ends(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> npt.NDArray[np.int64]:
    """Layers that embedding and loss together count as: the least number that makes the chunks equal; -1 if none does.

    The loss counts as the larger half. Every stage keeps at least one layer; with virtual stages the first and the last
    chunk may hold none, but embedding or loss.
    """
    v = np.asarray(virtual_stages, dtype=np.int64)
    chunks = np.asarray(pp, dtype=np.int64) * v
    found = np.full(chunks.shape, -1, dtype=np.int64)
    for count in range(MOST_LAYERS_FOR_ENDS, -1, -1):
        # With one chunk both ends are the same, and nothing is left to balance.
        full, last = (layers + count) // chunks, (count + 1) // 2
        fits = ((layers + count) % chunks == 0) & (full > 0) & ((full > last) | ((v > 1) & (full == last)))
        found = np.where(fits & ((chunks > 1) | (count == 0)), count, found)
    return np.asarray(found)


def ends_short(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> tuple[FloatArray, FloatArray]:
    """Layers that the first and the last chunk are short of a full one; 0 where there is no split."""
    count = np.maximum(layers_for_ends(layers, pp, virtual_stages), 0)
    return np.asarray(count // 2, dtype=np.float64), np.asarray((count + 1) // 2, dtype=np.float64)


def split_is_legal(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> BoolArray:
    """Whether `layers` can be laid on `pp * virtual_stages` chunks, see `layers_of_stages`."""
    return np.asarray(layers_for_ends(layers, pp, virtual_stages) >= 0)


def model_splits(model: Model, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> BoolArray:
    """Whether a model's layers can be laid out, its dense layers in the first chunks of the stages."""
    legal = split_is_legal(model.layers, pp, virtual_stages)
    dense = layer_counts(model).get("dense", 0) if len(kinds(model)) > 1 else 0
    if not dense:
        return legal
    v = np.asarray(virtual_stages, dtype=np.int64)
    full = (model.layers + np.maximum(layers_for_ends(model.layers, pp, v), 0)) // (np.asarray(pp) * v)
    first, _ = ends_short(model.layers, pp, v)
    return np.asarray(legal & ((v == 1) | (dense <= np.asarray(pp) * full - first)))


@cache
def layers_of_stages(layers: int, pp: int, virtual_stages: int = 1) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of each stage: `result[stage][chunk]`.

    Even if `pp * virtual_stages` divides `layers`. Else embedding and loss count as layers (`layers_for_ends`), so
    that the first and the last chunk hold fewer. Chunk `k` of stage `i` is the `(k * pp + i)`-th in the order of the
    model. Every layer is placed exactly once.

    Raises
    ------
    ValueError
        If there is no such split.
    """
    chunks = pp * virtual_stages
    count = int(layers_for_ends(layers, pp, virtual_stages))
    if count < 0:
        raise ValueError(
            f"{layers} layers have no split into {pp} stages x {virtual_stages} chunks: "
            f"{chunks} divides neither {layers} nor {layers} + 1 to {MOST_LAYERS_FOR_ENDS}"
        )
    sizes = [(layers + count) // chunks] * chunks
    sizes[0] -= count // 2
    sizes[-1] -= (count + 1) // 2
    return tuple(tuple(sizes[stage::pp]) for stage in range(pp))


def stage_index(stage: npt.ArrayLike, pp: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Index from the front; negative `stage` counts from the end, -1 is the last stage."""
    stage, pp = np.asarray(stage, dtype=np.int64), np.asarray(pp, dtype=np.int64)
    return np.asarray(np.where(stage < 0, pp + stage, stage))


def stage_layers(
    layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1, *, stage: npt.ArrayLike
) -> FloatArray:
    """Layers on a stage, its chunks together; NaN where no split exists, 0 for a stage that is not there."""
    pp, v = np.asarray(pp, dtype=np.int64), np.asarray(virtual_stages, dtype=np.int64)
    index = stage_index(stage, pp)
    first, last = ends_short(layers, pp, v)
    counted = layers + np.maximum(layers_for_ends(layers, pp, v), 0)
    count = counted / pp - first * (index == 0) - last * (index == pp - 1)
    count = np.where((index < 0) | (index >= pp), 0.0, count)
    return np.asarray(np.where(split_is_legal(layers, pp, v), count, np.nan))


def first_stage_layers(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> FloatArray:
    """Layers on the first stage, which also holds the embedding."""
    return stage_layers(layers, pp, virtual_stages, stage=0)


def last_stage_layers(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> FloatArray:
    """Layers on the last stage, which also holds the head and the loss."""
    return stage_layers(layers, pp, virtual_stages, stage=-1)


def heaviest_stage_layers(layers: int, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1) -> FloatArray:
    """Layers on the fullest stage: a middle one if there is one, for only the ends can be lighter."""
    ends = np.maximum(
        stage_layers(layers, pp, virtual_stages, stage=0), stage_layers(layers, pp, virtual_stages, stage=-1)
    )
    return np.maximum(ends, np.where(np.asarray(pp) > 2, stage_layers(layers, pp, virtual_stages, stage=1), 0.0))


def dense_layers_of_stages(model: Model, pp: int, virtual_stages: int = 1) -> tuple[tuple[int, ...], ...]:
    """Dense layers of each chunk, `result[stage][chunk]`: the first ones in the order of the model."""
    split = layers_of_stages(model.layers, pp, virtual_stages)
    left = layer_counts(model).get("dense", 0)
    taken = [[0] * virtual_stages for _ in range(pp)]
    for chunk in range(virtual_stages):
        for stage in range(pp):
            taken[stage][chunk] = min(left, split[stage][chunk])
            left -= taken[stage][chunk]
    return tuple(tuple(chunks) for chunks in taken)


def stage_layers_of_kind(
    model: Model, kind: Kind, pp: npt.ArrayLike, virtual_stages: npt.ArrayLike = 1, *, stage: npt.ArrayLike
) -> FloatArray:
    """Layers of one kind on a stage; NaN where no split exists, 0 for a stage that is not there."""
    everything = stage_layers(model.layers, pp, virtual_stages, stage=stage)
    if len(kinds(model)) == 1:
        return everything if kind in kinds(model) else np.zeros_like(everything)

    def dense(p: int, v: int, i: int) -> float:
        if not split_is_legal(model.layers, p, v):
            return float("nan")
        return float(sum(dense_layers_of_stages(model, p, v)[i])) if 0 <= i < p else 0.0

    counted = each_combination(dense, pp, virtual_stages, stage_index(stage, pp))
    return counted if kind == "dense" else everything - counted


def each_combination(function: Callable[..., float], *arguments: npt.ArrayLike) -> FloatArray:
    """Apply a function of small integers to broadcast arrays, once for each combination that occurs."""
    arrays = np.broadcast_arrays(*(np.asarray(argument, dtype=np.int64) for argument in arguments))
    key: npt.NDArray[Any] = np.zeros(arrays[0].shape, dtype=np.int64)
    for array in arrays:
        low = array.min(initial=0)
        key = key * (int(array.max(initial=0)) - int(low) + 1) + (array - low)
    _, first, inverse = np.unique(key.ravel(), return_index=True, return_inverse=True)
    columns = [array.ravel()[first] for array in arrays]
    values = [function(*(int(column[row]) for column in columns)) for row in range(len(first))]
    return np.asarray(np.array(values, dtype=np.float64)[inverse].reshape(key.shape))


def chunks_in_flight(
    pp: npt.ArrayLike,
    virtual_stages: npt.ArrayLike,
    micro_batches: npt.ArrayLike,
    *,
    stage: npt.ArrayLike,
    schedule: npt.ArrayLike = "1f1b",
) -> FloatArray:
    """Most chunks, each of one micro-batch, whose activations a stage holds at once.

    1F1B: min(p - i, m). Interleaved: the warm-up forwards and one more, 2 (p - i - 1) + (v - 1) p + 1, of m v
    at most. ZB-H1: min(p, m), for stage i puts off the gradients of weights of i micro-batches, and keeps what they
    need (Qi et al. 2023, table 2). Source: Narayanan et al. 2021, section 2.2; Megatron-LM,
    `get_pp_rank_microbatches` in the pipeline schedules.
    """
    pp, v = np.asarray(pp, dtype=np.int64), np.asarray(virtual_stages, dtype=np.int64)
    m, index = np.asarray(micro_batches, dtype=np.int64), stage_index(stage, pp)
    plain = np.minimum(pp - index, m)
    interleaved = np.minimum(2 * (pp - index - 1) + (v - 1) * pp + 1, m * v)
    held = np.where(v > 1, interleaved, np.where(np.asarray(schedule) == "zb-h1", np.minimum(pp, m), plain))
    return np.where((index < 0) | (index >= pp), 0, held).astype(np.float64)


ROUNDS = 4
"""Beyond so many rounds of an interleaved schedule nothing new happens; fewer distinct cases keep tables quick."""


def layers_in_flight(
    model: Model,
    pp: npt.ArrayLike,
    virtual_stages: npt.ArrayLike,
    micro_batches: npt.ArrayLike,
    *,
    stage: npt.ArrayLike,
    kind: Kind = "dense",
    schedule: npt.ArrayLike = "1f1b",
) -> FloatArray:
    """Layers of a kind, each of one micro-batch, whose activations a stage holds at once.

    Equal chunks: chunks in flight times layers of a chunk. Unequal ones under interleaving: the peak of the
    schedule, for the chunks in flight are not all of one size. In a mixture with dense layers the peaks of
    both kinds are taken apart, so their sum is an upper bound. NaN where the layers have no split.
    """
    pp, v = np.asarray(pp, dtype=np.int64), np.asarray(virtual_stages, dtype=np.int64)
    m, index = np.asarray(micro_batches, dtype=np.int64), stage_index(stage, pp)
    held = chunks_in_flight(pp, v, m, stage=index, schedule=schedule)
    equal = held * stage_layers_of_kind(model, kind, pp, v, stage=index) / v
    unequal = (v > 1) & ((model.layers % (pp * v) != 0) | (len(kinds(model)) > 1))
    if not np.any(unequal):
        return np.asarray(equal)
    rounds = np.minimum(m, ROUNDS * pp)

    def peak(p: int, chunks: int, micro: int, i: int) -> float:
        if not split_is_legal(model.layers, p, chunks):
            return float("nan")
        return peak_layers(layers_of_kind(model, kind, p, chunks)[i], p, micro, i) if 0 <= i < p else 0.0

    return np.asarray(np.where(unequal, each_combination(peak, pp, v, rounds, index), equal))


def layers_of_kind(model: Model, kind: Kind, pp: int, virtual_stages: int) -> tuple[tuple[int, ...], ...]:
    """Layers of one kind in each chunk of each stage, `result[stage][chunk]`."""
    split = layers_of_stages(model.layers, pp, virtual_stages)
    dense = dense_layers_of_stages(model, pp, virtual_stages)
    if kind == "dense":
        return dense
    return tuple(tuple(n - d for n, d in zip(*stage, strict=True)) for stage in zip(split, dense, strict=True))


@lru_cache(maxsize=4096)
def peak_layers(sizes: tuple[int, ...], pp: int, micro_batches: int, stage: int) -> float:
    """Peak of the interleaved schedule on one stage.

    Forwards run through the chunks in groups of `pp` micro-batches, backwards through the chunks in reverse.
    """
    groups = -(-micro_batches // pp)
    order = np.tile(np.repeat(np.asarray(sizes), pp), groups)
    back = np.tile(np.repeat(np.asarray(sizes[::-1]), pp), groups)
    total = micro_batches * len(sizes)
    held = min(2 * (pp - stage - 1) + (len(sizes) - 1) * pp + 1, total)
    forward = np.concatenate([[0], np.cumsum(order[:total])])
    backward = np.concatenate([[0], np.cumsum(back[:total])])
    done = np.arange(held, total + 1)
    return float(np.max(forward[done] - backward[done - held]))
