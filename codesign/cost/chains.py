"""Chains of dependent operations in a pipeline, lower bounds of the step. Floor 3. In: layers, p, v, m. Out: counts.

A chain is counted in layers (forward and backward), passes of head and embedding, and stage transfers: coefficients of
the durations, all non-negative, that depend on the shape of the pipeline only. Whatever the durations are, no schedule
of the modelled kind (1F1B; interleaved 1F1B) ends before its longest chain.

- *last stage*: the first micro-batch fills the pipeline (the first chunk of every earlier stage), the last stage works
  through all its micro-batches, the last gradient drains.
- *round trips* (v = 1): under 1F1B the first stage starts micro-batch k + p only after the backward of k has come back,
  so every p-th micro-batch makes a whole round trip, with its transfers and the head; the last group ends as above.
- *middle stage*: where embedding and head count as layers, the end stages are lighter: the last full stage before
  them works through its micro-batches, between fill and drain.

Source: Narayanan et al. 2021 (SC'21), sections 2.2.1 and 2.2.2, for the schedules; the chains are read off the order of
operations there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from codesign.cost import stages

Floats = npt.NDArray[np.float64]

NAMES = ("last stage", "round trips", "middle stage")
PARTS = (
    "forward",
    "backward",
    "head_forward",
    "head_backward",
    "embedding_forward",
    "embedding_backward",
    "transfer",
)
LAYERS_FOR_ENDS = 2


def _chunks(layers: int, p: Any, v: Any) -> tuple[Floats, Floats]:
    """Layers of a full chunk, and what the first and the last chunk are short of it (0 or 1)."""
    even = layers % (p * v) == 0
    short = np.where(even, 0.0, 1.0)
    return np.where(even, layers, layers + LAYERS_FOR_ENDS) / (p * v), short


def window_layers(layers: int, p: Any, v: Any) -> Floats:
    """Layers of the first stage."""
    chunk, short = _chunks(layers, p, v)
    return np.asarray(np.where(p == 1, layers, chunk * v - short))


def coefficient(layers: int, p: Any, v: Any, m: Any, name: str, part: str) -> Floats:
    """Times that a chain counts a part.

    Parameters
    ----------
    layers : of the model. p, v, m : stages, virtual stages, micro-batches, integer arrays of one shape. Where the
        layers have no legal split the count has no meaning (but is finite).
    name, part : of `NAMES` and `PARTS`.
    """
    p, v, m = np.broadcast_arrays(np.asarray(p), np.asarray(v), np.asarray(m))
    if name == "last stage":
        found = _last_stage(layers, p, v, m, part)
    elif name == "round trips":
        found = _round_trips(layers, p, v, m, part)
    else:
        found = _middle_stage(layers, p, v, m, part)
    return np.asarray(np.maximum(found, 0.0), dtype=np.float64)


def beyond_window(layers: int, p: Any, v: Any, m: Any, name: str, part: str, window: float) -> Floats:
    """`coefficient` less `window` times the layers of the first stage, which every chain passes at least once.

    Zero where a chain does not apply, and where the layers have no legal split.
    """
    found = coefficient(layers, p, v, m, name, part)
    applies = (found > 0) & stages.split_is_legal(layers, p, v)
    return np.where(applies, found - window * window_layers(layers, p, v), 0.0)


def _fill(layers: int, p: Any, v: Any, stages: Any) -> Floats:
    """Layers of the first chunks of the first `stages` stages."""
    chunk, short = _chunks(layers, p, v)
    return np.asarray(np.where(stages > 0, stages * chunk - short, 0.0))


def _last_stage(layers: int, p: Any, v: Any, m: Any, part: str) -> Any:
    if part in ("forward", "backward"):
        return _fill(layers, p, v, p - 1) + m * window_layers(layers, p, v)
    if part.startswith("head"):
        return m * np.ones(p.shape)
    if part.startswith("embedding"):
        return np.where(p == 1, m, 1.0)
    return 2.0 * (p - 1)


def _round_trips(layers: int, p: Any, v: Any, m: Any, part: str) -> Any:
    """Round trips of every p-th micro-batch but the last group's; that group is worked off by the last stage."""
    trips = np.ceil(m / p) - 1.0
    left = m - trips * p
    if part in ("forward", "backward"):
        whole = np.full(p.shape, float(layers))
        found = trips * whole + _fill(layers, p, v, p - 1) + left * window_layers(layers, p, v)
    elif part.startswith("head"):
        found = trips + left
    elif part.startswith("embedding"):
        found = trips + 1.0
    else:
        found = 2.0 * (p - 1) * (trips + 1.0)
    return np.where((v == 1) & (p > 1), found, 0.0)


def _middle_stage(layers: int, p: Any, v: Any, m: Any, part: str) -> Any:
    chunk, short = _chunks(layers, p, v)
    if part in ("forward", "backward"):
        found = _fill(layers, p, v, p - 2) + m * chunk * v
    elif part.startswith("head"):
        found = np.zeros(p.shape)
    elif part.startswith("embedding"):
        found = np.ones(p.shape)
    else:
        found = 2.0 * (p - 2)
    return np.where((short > 0) & (p > 2), found, 0.0)
