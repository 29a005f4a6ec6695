"""Chains of dependent operations in a pipeline, lower bounds of the step. Floor 3. In: layers, p, v, m. Out: counts.

A chain is counted in layers (forward and backward), passes of head and embedding, and stage transfers: coefficients of
the durations, all non-negative, that depend on the shape of the pipeline only. Whatever the durations are, no schedule
of the modelled kind (1F1B; interleaved 1F1B) ends before its longest chain.

- *last stage*: the first micro-batch fills the pipeline (the first chunk of every earlier stage), the last stage works
  through all its micro-batches, the last gradient drains.
- *round trips* (v = 1): under 1F1B the first stage starts micro-batch k + p only after the backward of k has come back,
  so every p-th micro-batch makes a whole round trip, with its transfers and the head; the last group ends as above.
- *middle stage*: the end stages may be lighter: the stage before the last works through its micro-batches, between
  fill and drain.

Under ZB-H1 (stage i puts off the gradients of weights, W, of i micro-batches; v = 1):

- *last gradient*: the first micro-batch fills the pipeline, the last stage works until the last gradient leaves it,
  with the W of all but p micro-batches, the last gradient drains, and the first stage computes its W.
- *first stage*: the first micro-batch passes all stages and its gradient comes back; then the first stage still has
  all backwards with their W, and the forwards of all but p micro-batches.

Every chain passes each kind of layer of the first stage at least once: its dense layers lie in its first chunk (a rule
of the split), and the first chunks are part of every chain.

Source: Narayanan et al. 2021 (SC'21), sections 2.2.1 and 2.2.2, for the schedules; the chains are read off the order of
operations there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codesign.cost import stages
from codesign.cost.architecture import kinds, layer_counts

if TYPE_CHECKING:
    from codesign.cost.architecture import Kind
    from codesign.spec.workload import Model

Floats = npt.NDArray[np.float64]

NAMES = ("last stage", "round trips", "middle stage")
ZERO_BUBBLE_NAMES = ("last gradient", "first stage")
ENDS = ("head_forward", "head_backward", "embedding_forward", "embedding_backward", "transfer")
"""What a chain counts beside layers."""


@dataclass(frozen=True)
class Shape:
    """Layers of one kind by stage, arrays of the shape of the pipelines; zeros where there is no split."""

    whole: float
    first: Floats
    """Layers of the first stage."""
    last: Floats
    middle: Floats
    """Layers of the stage before the last."""
    fill: Floats
    """Layers of the first chunks of all stages but the last."""
    fill_before_middle: Floats
    """Layers of the first chunks of all stages but the last two."""


def shape(model: Model, kind: Kind, p: Any, v: Any) -> Shape:
    """Count the layers of a kind."""
    p, v = np.broadcast_arrays(np.asarray(p, dtype=np.int64), np.asarray(v, dtype=np.int64))

    def layers(stage: int) -> Floats:
        return np.nan_to_num(stages.stage_layers_of_kind(model, kind, p, v, stage=stage))

    if len(kinds(model)) == 1:
        counted = model.layers + np.maximum(stages.layers_for_ends(model.layers, p, v), 0)
        chunk, (short, _) = counted / (p * v), stages.ends_short(model.layers, p, v)
        fill, before = (np.where(n > 0, n * chunk - short, 0.0) for n in (p - 1, p - 2))
    else:

        def first_chunks(pp: int, vv: int, count: int) -> float:
            if not stages.split_is_legal(model.layers, pp, vv):
                return 0.0
            return float(sum(chunks[0] for chunks in stages.layers_of_kind(model, kind, pp, vv)[:count]))

        fill, before = (stages.each_combination(first_chunks, p, v, np.maximum(n, 0)) for n in (p - 1, p - 2))
    return Shape(float(layer_counts(model)[kind]), layers(0), layers(-1), layers(-2), fill, before)


def layers_of_chain(model: Model, p: Any, v: Any, m: Any, name: str, kind: Kind) -> Floats:
    """Layers of a kind that a chain passes, forward as well as backward; zero where the chain does not apply.

    Parameters
    ----------
    p, v, m : stages, virtual stages, micro-batches, integer arrays of one shape.
    name : of `NAMES`.
    """
    p, v, m = np.broadcast_arrays(np.asarray(p), np.asarray(v), np.asarray(m))
    counts = shape(model, kind, p, v)
    if name == "last stage":
        found = counts.fill + m * counts.last
    elif name == "round trips":
        # Every p-th micro-batch makes a whole round trip but the last group's, which the last stage works off.
        trips = np.ceil(m / p) - 1.0
        found = trips * counts.whole + counts.fill + (m - trips * p) * counts.last
    else:
        found = counts.fill_before_middle + m * counts.middle
    return np.where(applies(model, p, v, name), found, 0.0)


def applies(model: Model, p: Any, v: Any, name: str) -> npt.NDArray[np.bool_]:
    """Whether a chain is one of the pipeline's that others do not dominate; false where the layers have no split."""
    legal = stages.model_splits(model, p, v)
    if name == "round trips":
        return np.asarray(legal & (v == 1) & (p > 1))
    if name == "middle stage":
        _, last_is_short = stages.ends_short(model.layers, p, v)
        return np.asarray(legal & (p > 2) & ((last_is_short > 0) | (len(kinds(model)) > 1)))
    return np.asarray(legal)


def beyond_window(model: Model, p: Any, v: Any, m: Any, name: str, kind: Kind, window: float) -> Floats:
    """`layers_of_chain` less `window` times the layers of the first stage, which every chain passes at least once."""
    found = layers_of_chain(model, p, v, m, name, kind) - window * shape(model, kind, p, v).first
    # Interleaving runs groups of p micro-batches; for other numbers there is no schedule, and the count has no meaning.
    found = np.where((np.asarray(v) > 1) & (np.asarray(m) % np.asarray(p) != 0), np.maximum(found, 0.0), found)
    return np.where(applies(model, p, v, name), found, 0.0)


@dataclass(frozen=True)
class ZeroBubble:
    """Layers of a kind that a chain of ZB-H1 passes: forward, whole backward, backward without gradients of weights."""

    forward: Floats
    backward: Floats
    inputs_only: Floats


def zero_bubble(model: Model, p: Any, v: Any, m: Any, name: str, kind: Kind, window: float) -> ZeroBubble:
    """Layers of a chain of `ZERO_BUBBLE_NAMES`, less `window` times those of the first stage in both directions."""
    p, v, m = np.broadcast_arrays(np.asarray(p), np.asarray(v), np.asarray(m))
    counts = shape(model, kind, p, v)
    beyond = np.maximum(m - p, 0)
    if name == "last gradient":
        forward = counts.fill + m * counts.last
        backward = beyond * counts.last + counts.first
        inputs_only = counts.fill + m * counts.last - backward
    else:
        forward = counts.whole + beyond * counts.first
        backward = m * counts.first
        inputs_only = counts.whole - counts.first
    legal = stages.model_splits(model, p, v) & (v == 1) & (p > 1)
    passed = window * counts.first
    return ZeroBubble(*(np.where(legal, n, 0.0) for n in (forward - passed, backward - passed, inputs_only)))


def zero_bubble_ends(model: Model, p: Any, v: Any, m: Any, name: str, part: str) -> Floats:
    """Times that a chain of ZB-H1 counts a part of `ENDS`."""
    p, v, m = np.broadcast_arrays(np.asarray(p), np.asarray(v), np.asarray(m))
    last = name == "last gradient"
    times = {
        "transfer": 2.0 * (p - 1),
        "head_forward": m if last else np.ones(p.shape),
        "head_backward": m if last else np.ones(p.shape),
        "embedding_forward": np.ones(p.shape) if last else 1.0 + np.maximum(m - p, 0),
        "embedding_backward": np.ones(p.shape) if last else m,
    }[part]
    return np.where(stages.model_splits(model, p, v) & (v == 1) & (p > 1), times, 0.0)


def ends_of_chain(model: Model, p: Any, v: Any, m: Any, name: str, part: str) -> Floats:
    """Times that a chain counts a part of `ENDS`."""
    p, v, m = np.broadcast_arrays(np.asarray(p), np.asarray(v), np.asarray(m))
    trips = np.ceil(m / p) - 1.0 if name == "round trips" else np.zeros(p.shape)
    stages_passed = p - 2 if name == "middle stage" else p - 1
    if part == "transfer":
        found = 2.0 * stages_passed * (trips + 1.0)
    elif part.startswith("head"):
        found = {"last stage": m, "round trips": trips + m - trips * p, "middle stage": np.zeros(p.shape)}[name]
    else:
        found = np.where((p == 1) & (name == "last stage"), m, trips + 1.0)
    return np.where(applies(model, p, v, name), found, 0.0)
