"""The pipeline, played event by event. Floor 4. In: seconds of each chunk, of each transfer, micro-batches. Out: times.

Each rank executes its operations in the fixed order of the schedule: 1F1B for one chunk a rank, interleaved 1F1B for
several. An operation starts when the rank is free and what it needs has arrived: the forward of a chunk needs the
activations of the chunk before it, the backward the gradients of the chunk after it (the last chunk's backward its own
forward). A transfer between stages delays its receiver and occupies neither side.

Under ZB-H1 the backward is split: BACKWARD computes the gradients of inputs, which the stage before waits for, WEIGHTS
those of weights, which nothing waits for; rank i computes them i micro-batches later (Qi et al. 2023, "Zero bubble
pipeline parallelism", section 2; the last ranks fill with them what would be a bubble).

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC'21),
sections 2.2.1 and 2.2.2; warm-up counts as in Megatron-LM's schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

FORWARD, BACKWARD, WEIGHTS = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Schedule:
    """What was played.

    Attributes
    ----------
    makespan_s : end of the last operation.
    last_backward_end_s : end of the last backward of each rank, shape (p,).
    busy_s : seconds that each rank works, shape (p,).
    """

    makespan_s: float
    last_backward_end_s: Floats
    busy_s: Floats

    @property
    def bubble_fraction(self) -> float:
        """Share of the ranks' time that they wait."""
        return float(1.0 - self.busy_s.sum() / (self.makespan_s * len(self.busy_s)))


@dataclass(frozen=True, eq=False)
class Timeline:
    """Every operation, in an order in which they can be executed; arrays of one length."""

    rank: Ints
    chunk: Ints
    micro_batch: Ints
    kind: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True, eq=False)
class _Order:
    """Operations of a schedule in topological order; position 0 is an operation that ended at time zero."""

    stage: Ints
    """Virtual stage c p + i of chunk c on rank i."""
    micro_batch: Ints
    kind: Ints
    before: Ints
    """Position of the operation before it on the same rank."""
    needs: Ints
    """Position of the operation whose result it needs."""
    boundary: Ints
    """Boundary that this result crosses (index of the rank on its earlier side), or p for none."""


def operations(p: int, v: int, m: int, rank: int, split: bool = False) -> list[tuple[int, int, int]]:
    """Order of a rank's operations: (kind, chunk, micro-batch). With `split` the order of ZB-H1, for one chunk a rank.

    Warm-up forwards: min(p - 1 - rank, m) for one chunk; 2 (p - 1 - rank) + (v - 1) p, of m v at most, for several.
    Then one forward and one backward in turn, then the backwards that are left. Interleaved, forwards go through the
    chunks in groups of p micro-batches, backwards in reverse. The activations that this holds at once are counted by
    `codesign.cost.stages.chunks_in_flight`.
    """
    total = m * v
    warm_up = min(p - 1 - rank, m) if v == 1 else min(2 * (p - 1 - rank) + (v - 1) * p, total)

    def position(k: int) -> tuple[int, int]:
        group, inside = divmod(k, p * v)
        return inside // p, group * p + inside % p

    def forward(k: int) -> tuple[int, int, int]:
        chunk, micro_batch = position(k) if v > 1 else (0, k)
        return FORWARD, chunk, micro_batch

    def backward(k: int) -> tuple[int, int, int]:
        chunk, micro_batch = position(k) if v > 1 else (0, k)
        return BACKWARD, v - 1 - chunk, micro_batch

    found = [forward(k) for k in range(warm_up)]
    for k in range(warm_up, total):
        found.append(forward(k))
        found.append(backward(k - warm_up))
    found += [backward(k) for k in range(total - warm_up, total)]
    return _with_weights(found, m, rank) if split else found


def _with_weights(order: list[tuple[int, int, int]], m: int, rank: int) -> list[tuple[int, int, int]]:
    """The gradients of weights of micro-batch j follow the backward of micro-batch j + rank, the last ones the end."""
    found = []
    for operation in order:
        found.append(operation)
        kind, chunk, micro_batch = operation
        if kind == BACKWARD and micro_batch >= rank:
            found.append((WEIGHTS, chunk, micro_batch - rank))
    return found + [(WEIGHTS, 0, micro_batch) for micro_batch in range(max(0, m - rank), m)]


@lru_cache(maxsize=64)
def _order(p: int, v: int, m: int, split: bool = False) -> _Order:
    """All ranks' operations in an order in which each comes after what it needs."""
    queues = [operations(p, v, m, rank, split) for rank in range(p)]
    last = p * v - 1
    done: dict[tuple[int, int, int], int] = {}
    following = [0] * p
    before_of = [0] * p
    columns: list[tuple[int, int, int, int, int, int]] = [(0, 0, 0, 0, 0, p)]
    left = sum(len(queue) for queue in queues)
    while left:
        stuck = left
        for rank in range(p):
            queue = queues[rank]
            while following[rank] < len(queue):
                kind, chunk, micro_batch = queue[following[rank]]
                needed: tuple[int, int, int] | None
                stage = chunk * p + rank
                if kind == WEIGHTS:
                    needed, boundary = (BACKWARD, stage, micro_batch), p
                elif kind == FORWARD:
                    needed = None if stage == 0 else (FORWARD, stage - 1, micro_batch)
                    boundary = (stage - 1) % p
                elif stage == last:
                    needed, boundary = (FORWARD, stage, micro_batch), p
                else:
                    needed, boundary = (BACKWARD, stage + 1, micro_batch), stage % p
                if needed is not None and needed not in done:
                    break
                if needed is None or p == 1:
                    boundary = p
                position = len(columns)
                columns.append(
                    (stage, micro_batch, kind, before_of[rank], 0 if needed is None else done[needed], boundary)
                )
                done[kind, stage, micro_batch] = position
                before_of[rank] = position
                following[rank] += 1
                left -= 1
        if stuck == left:
            raise ValueError(f"the schedule of p={p}, v={v}, m={m} waits for itself")
    return _Order(*(np.array(column, dtype=np.int32) for column in zip(*columns, strict=True)))


def _ends(
    forward_s: Floats, backward_s: Floats, transfer_s: npt.ArrayLike, order: _Order, weights_s: Floats | None
) -> tuple[Floats, Floats]:
    """End and duration of every operation of an order."""
    p = forward_s.shape[0]
    weights_s = np.zeros_like(forward_s) if weights_s is None else weights_s
    by_stage = np.stack([forward_s.T.reshape(-1), backward_s.T.reshape(-1), weights_s.T.reshape(-1)])
    durations = by_stage[order.kind, order.stage]
    durations[0] = 0.0
    delay = np.append(np.broadcast_to(np.asarray(transfer_s, dtype=np.float64), (p,)), 0.0)[order.boundary]
    ends = [0.0]
    append = ends.append
    for before, needs, wait, takes in zip(
        order.before[1:].tolist(), order.needs[1:].tolist(), delay[1:].tolist(), durations[1:].tolist(), strict=True
    ):
        free = ends[before]
        ready = ends[needs] + wait
        append((free if free > ready else ready) + takes)
    return np.array(ends), durations


def play(
    forward_s: Floats,
    backward_s: Floats,
    transfer_s: npt.ArrayLike,
    micro_batches: int,
    weights_s: Floats | None = None,
) -> Schedule:
    """Play one step.

    Parameters
    ----------
    forward_s, backward_s : seconds of each chunk for one micro-batch, shape (p, v): chunk c of rank i.
    transfer_s : seconds of a transfer across the boundary after rank i (the last entry: from the last rank back to the
        first), a number or shape (p,).
    micro_batches : m; p must divide it if v > 1.
    weights_s : seconds of the gradients of weights where ZB-H1 computes them apart (then not in `backward_s`, and v is
        1), shape (p, v).

    Raises
    ------
    ValueError
        If p does not divide m under interleaving, or ZB-H1 is asked of several chunks a rank.
    """
    p, v = forward_s.shape
    _check(p, v, micro_batches, weights_s)
    order = _order(p, v, micro_batches, weights_s is not None)
    ends, _ = _ends(forward_s, backward_s, transfer_s, order, weights_s)
    last = np.zeros(p)
    np.maximum.at(last, order.stage[1:] % p, ends[1:])
    busy = micro_batches * (forward_s + backward_s + (0.0 if weights_s is None else weights_s)).sum(axis=1)
    return Schedule(float(ends.max()), last, busy)


def timeline(
    forward_s: Floats,
    backward_s: Floats,
    transfer_s: npt.ArrayLike,
    micro_batches: int,
    weights_s: Floats | None = None,
) -> Timeline:
    """Every operation of the step that `play` plays."""
    p, v = forward_s.shape
    _check(p, v, micro_batches, weights_s)
    order = _order(p, v, micro_batches, weights_s is not None)
    ends, durations = _ends(forward_s, backward_s, transfer_s, order, weights_s)
    return Timeline(
        rank=(order.stage % p)[1:],
        chunk=(order.stage // p)[1:],
        micro_batch=order.micro_batch[1:],
        kind=order.kind[1:],
        start_s=(ends - durations)[1:],
        end_s=ends[1:],
    )


def _check(p: int, v: int, micro_batches: int, weights_s: Floats | None) -> None:
    if weights_s is not None and v > 1:
        raise ValueError(f"ZB-H1 has one chunk a rank, not {v}")
    if v > 1 and micro_batches % p:
        raise ValueError(f"interleaving runs micro-batches in groups of p = {p}, which does not divide {micro_batches}")
