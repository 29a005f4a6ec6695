"""The pipeline, played: against hand-worked cases, a slow simulation written here, and what no schedule may do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import chains, stages
from codesign.exact.schedule import BACKWARD, FORWARD, WEIGHTS, operations, play, timeline
from codesign.spec.workload import Model

Floats = npt.NDArray[np.float64]


def equal(p: int, v: int, seconds: float) -> Floats:
    return np.full((p, v), seconds)


# --------------------------------------------------------------------------------------------------- worked by hand


def test_one_stage_does_everything_in_turn() -> None:
    # 5 micro-batches of 2 + 3 s, nobody to wait for; transfers do not exist.
    played = play(equal(1, 1, 2.0), equal(1, 1, 3.0), 100.0, 5)
    assert played.makespan_s == 25.0
    assert played.last_backward_end_s == pytest.approx([25.0])
    assert played.bubble_fraction == 0.0


def test_two_stages_two_micro_batches() -> None:
    """p 2, m 2, f 1, b 2, transfer 0.5, step by step.

    rank 0: F0 0-1, F1 1-2, B0, B1; rank 1: F0, B0, F1, B1
    rank 1: F0 1.5-2.5 (arrives 1.5), B0 2.5-4.5, F1 4.5-5.5 (arrived 2.5), B1 5.5-7.5
    rank 0: B0 5-7 (arrives 4.5 + 0.5), B1 8-10 (arrives 7.5 + 0.5)
    """
    played = play(equal(2, 1, 1.0), equal(2, 1, 2.0), 0.5, 2)
    assert played.makespan_s == 10.0
    assert played.last_backward_end_s.tolist() == [10.0, 7.5]
    assert played.busy_s.tolist() == [6.0, 6.0]
    assert played.bubble_fraction == pytest.approx(1 - 12 / 20)
    line = timeline(equal(2, 1, 1.0), equal(2, 1, 2.0), 0.5, 2)
    found = {
        (int(rank), int(kind), int(batch)): (start, end)
        for rank, kind, batch, start, end in zip(
            line.rank, line.kind, line.micro_batch, line.start_s, line.end_s, strict=True
        )
    }
    assert found == {
        (0, FORWARD, 0): (0.0, 1.0),
        (0, FORWARD, 1): (1.0, 2.0),
        (1, FORWARD, 0): (1.5, 2.5),
        (1, BACKWARD, 0): (2.5, 4.5),
        (1, FORWARD, 1): (4.5, 5.5),
        (1, BACKWARD, 1): (5.5, 7.5),
        (0, BACKWARD, 0): (5.0, 7.0),
        (0, BACKWARD, 1): (8.0, 10.0),
    }


@pytest.mark.parametrize("p", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 20])
def test_equal_stages_take_m_and_p_less_one(p: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2.1: (m + p - 1) (f + b), without transfers, also where m < p."""
    assert play(equal(p, 1, 1.0), equal(p, 1, 2.5), 0.0, m).makespan_s == pytest.approx((m + p - 1) * 3.5, rel=1e-12)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (2, 3), (4, 2), (4, 5), (3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_interleaving_divides_the_bubble(p: int, v: int, groups: int) -> None:
    """Section 2.2.2: m (f + b) + (p - 1) (f + b) / v, with f and b those of a whole stage, as p divides m."""
    m = p * groups
    played = play(equal(p, v, 2.0 / v), equal(p, v, 4.0 / v), 0.0, m)
    assert played.makespan_s == pytest.approx(m * 6.0 + (p - 1) * 6.0 / v, rel=1e-12)
    assert played.bubble_fraction == pytest.approx(1 - m / (m + (p - 1) / v), rel=1e-12)


def test_a_slow_last_stage_sets_the_pace() -> None:
    """p 3, m 4, f 1, b 2, but the last stage takes 2 and 4.

    The first micro-batch reaches the last stage at 2; that works 4 x 6 = 24 s without a pause, for its input comes
    every second; the last gradient then passes two stages: 2 + 24 + 2 x 2 = 30.
    """
    forward, backward = equal(3, 1, 1.0), equal(3, 1, 2.0)
    forward[-1], backward[-1] = 2.0, 4.0
    played = play(forward, backward, 0.0, 4)
    assert played.makespan_s == 30.0
    assert played.last_backward_end_s.tolist() == [30.0, 28.0, 26.0]


def test_a_light_last_stage() -> None:
    """p 2, m 3: rank 0 takes 3 + 6, rank 1 takes 1 + 2.

    rank 0: F0 0-3, F1 3-6; rank 1: F0 3-4, B0 4-6; rank 0: B0 6-12, F2 12-15; rank 1: F1 6-7, B1 7-9, F2 15-16,
    B2 16-18; rank 0: B1 15-21, B2 21-27 = 3 x 9: never waits.
    """
    played = play(np.array([[3.0], [1.0]]), np.array([[6.0], [2.0]]), 0.0, 3)
    assert played.makespan_s == 27.0
    assert played.last_backward_end_s.tolist() == [27.0, 18.0]


def test_each_boundary_has_its_own_transfer() -> None:
    """One micro-batch through three stages: all forwards, transfers 1 and 10 twice, all backwards; the way back from
    the last stage to the first (100) is taken by interleaved schedules only."""
    assert play(equal(3, 1, 1.0), equal(3, 1, 1.0), [1.0, 10.0, 100.0], 1).makespan_s == 6 + 2 * 11
    # two chunks a rank, m = p = 2, transfers only on the way back to the first rank: F chunk 0 of both (0-1, 1-2 on
    # rank 0; 1-2, 2-3 on rank 1), to rank 0 at 102: F chunk 1 102-103, rank 1 103-104, B 104-105, rank 0 105-106,
    # rank 1 chunk 0 at 206-207, rank 0 207-208; the second micro-batch one second behind, as rank 1 turns around:
    # F 104.. waits for B: rank 1 F 105-106, B 106-107; rank 0 B 107-108; rank 1 208-209; rank 0 209-210
    assert play(equal(2, 2, 1.0), equal(2, 2, 1.0), [0.0, 100.0], 2).makespan_s == 210.0


def test_interleaving_needs_whole_groups() -> None:
    with pytest.raises(ValueError, match="groups of p = 4, which does not divide 6"):
        play(equal(4, 2, 1.0), equal(4, 2, 1.0), 0.0, 6)
    with pytest.raises(ValueError, match="does not divide"):
        timeline(equal(4, 2, 1.0), equal(4, 2, 1.0), 0.0, 6)


# ------------------------------------------------------------------------------------------------------------- ZB-H1


def test_two_stages_with_weights_put_off() -> None:
    """p 2, m 2, f 1, gradients of inputs 1, of weights 1, no transfers; by hand.

    rank 1: F0 1-2, B0 2-3, F1 3-4, B1 4-5, W0 5-6, W1 6-7 (rank 1 is one micro-batch behind: W0 follows B1)
    rank 0: F0 0-1, F1 1-2, B0 3-4, W0 4-5, B1 5-6, W1 6-7
    """
    one = equal(2, 1, 1.0)
    line = timeline(one, one, 0.0, 2, one)
    names = {FORWARD: "F", BACKWARD: "B", WEIGHTS: "W"}
    found = {
        (int(rank), f"{names[int(kind)]}{batch}"): end
        for rank, kind, batch, end in zip(line.rank, line.kind, line.micro_batch, line.end_s, strict=True)
    }
    assert {each: end for each, end in found.items() if each[0] == 0} == {
        (0, "F0"): 1.0, (0, "F1"): 2.0, (0, "B0"): 4.0, (0, "W0"): 5.0, (0, "B1"): 6.0, (0, "W1"): 7.0,
    }  # fmt: skip
    assert {each: end for each, end in found.items() if each[0] == 1} == {
        (1, "F0"): 2.0, (1, "B0"): 3.0, (1, "F1"): 4.0, (1, "B1"): 5.0, (1, "W0"): 6.0, (1, "W1"): 7.0,
    }  # fmt: skip
    # 1F1B with the whole backward of 2: (m + p - 1) (f + b) = 9
    assert play(one, 2 * one, 0.0, 2).makespan_s == 9.0
    assert play(one, one, 0.0, 2, one).makespan_s == 7.0


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_weights_put_off_leave_a_third_of_the_bubble(p: int, rounds: int) -> None:
    """Qi et al. 2023, table 2: (p - 1)(f + b - w) idle against (p - 1)(f + b + w) of 1F1B; a third where all are 1."""
    m, one = 2 * p * rounds, equal(p, 1, 1.0)
    idle_s = play(one, one, 0.0, m, one).makespan_s - 3.0 * m
    assert idle_s == pytest.approx(p - 1, rel=1e-12)
    assert play(one, 2 * one, 0.0, m).makespan_s - 3.0 * m == pytest.approx(3 * (p - 1), rel=1e-12)


@pytest.mark.parametrize("p", range(1, 9))
def test_weights_put_off_once_each_and_what_they_hold(p: int) -> None:
    """Every operation once; activations are held from a forward to the gradients of its weights, min(p, m) at most."""
    for m in range(1, 13):
        for rank in range(p):
            found = operations(p, 1, m, rank, split=True)
            assert sorted(found) == [(kind, 0, batch) for kind in (FORWARD, BACKWARD, WEIGHTS) for batch in range(m)]
            held = np.cumsum([{FORWARD: 1, BACKWARD: 0, WEIGHTS: -1}[kind] for kind, _, _ in found])
            assert max(held) <= stages.chunks_in_flight(p, 1, m, stage=rank, schedule="zb-h1") == min(p, m)
            for batch in range(m):
                places = [found.index((kind, 0, batch)) for kind in (FORWARD, BACKWARD, WEIGHTS)]
                assert places == sorted(places)
        if m >= p:  # the bound is met
            steps = [{FORWARD: 1, BACKWARD: 0, WEIGHTS: -1}[kind] for kind, _, _ in operations(p, 1, m, p - 1, True)]
            assert max(np.cumsum(steps)) == p


@settings(max_examples=150)
@given(st.integers(1, 6), st.integers(1, 12), st.lists(st.floats(0.0, 10.0, allow_nan=False), min_size=24, max_size=24))
def test_weights_put_off_are_the_same_work(p: int, m: int, seconds: list[float]) -> None:
    """The work is that of 1F1B, no rank ends before its own, and the step ends with some rank's last operation."""
    forward, inputs, weights = (np.array(seconds[i : i + p]).reshape(p, 1) for i in (0, 6, 12))
    way = np.array(seconds[18 : 18 + p])
    split = play(forward, inputs, way, m, weights)
    assert np.all(split.busy_s <= split.makespan_s * (1 + 1e-12))
    np.testing.assert_allclose(split.busy_s, play(forward, inputs + weights, way, m).busy_s)
    assert split.makespan_s == float(split.last_backward_end_s.max())


def test_weights_put_off_are_of_one_chunk() -> None:
    with pytest.raises(ValueError, match="one chunk a rank, not 2"):
        play(equal(2, 2, 1.0), equal(2, 2, 1.0), 0.0, 2, equal(2, 2, 1.0))


# --------------------------------------------------------------------------------------------- a simulation of its own


def order(p: int, v: int, m: int, rank: int) -> list[tuple[str, int, int]]:
    """(pass, virtual stage, micro-batch) as the papers tell it: forwards until the rank holds as many chunks as it may
    hold, then a backward for each forward, then the backwards that are left."""
    groups = [range(first, min(first + p, m)) for first in range(0, m, p)]
    if v == 1:
        forwards = backwards = [(rank, batch) for batch in range(m)]
        most = min(p - rank, m)
    else:
        forwards = [(chunk * p + rank, batch) for group in groups for chunk in range(v) for batch in group]
        backwards = [(chunk * p + rank, batch) for group in groups for chunk in reversed(range(v)) for batch in group]
        most = min(2 * (p - 1 - rank) + (v - 1) * p + 1, m * v)
    found: list[Any] = [("forward", *each) for each in forwards[:most]]
    ahead, behind = iter(forwards[most:]), iter(backwards)
    for stage, batch in behind:
        found.append(("backward", stage, batch))
        following = next(ahead, None)
        if following is not None:
            found.append(("forward", *following))
    return found


def simulated(forward: Floats, backward: Floats, transfer: Floats, m: int) -> dict[tuple[str, int, int], float]:
    """Finish time of every operation, by passing over all ranks again and again until nothing is left."""
    p, v = forward.shape
    last = p * v - 1
    finished: dict[tuple[str, int, int], float] = {}
    waiting = {rank: order(p, v, m, rank) for rank in range(p)}
    free = dict.fromkeys(range(p), 0.0)
    while any(waiting.values()):
        moved = False
        for rank in range(p):
            if not waiting[rank]:
                continue
            kind, stage, batch = waiting[rank][0]
            if kind == "forward":
                needs = None if stage == 0 else ("forward", stage - 1, batch)
                way = transfer[(rank - 1) % p]
                takes = forward[rank, stage // p]
            else:
                needs = ("forward", stage, batch) if stage == last else ("backward", stage + 1, batch)
                way = 0.0 if stage == last else transfer[rank]
                takes = backward[rank, stage // p]
            if needs is not None and needs not in finished:
                continue
            arrived = 0.0 if needs is None else finished[needs] + (way if p > 1 else 0.0)
            free[rank] = max(free[rank], arrived) + takes
            finished[kind, stage, batch] = free[rank]
            waiting[rank].pop(0)
            moved = True
        assert moved, "the simulation waits for itself"
    return finished


SECONDS = st.floats(0.0, 10.0, allow_nan=False)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, Floats, Floats, int]:
    p = draw(st.integers(1, 6))
    v = draw(st.integers(1, 4)) if p > 1 else 1
    m = draw(st.integers(1, 4)) * p if v > 1 else draw(st.integers(1, 14))

    def several(n: int) -> Floats:
        return np.array(draw(st.lists(SECONDS, min_size=n, max_size=n)))

    return several(p * v).reshape(p, v), several(p * v).reshape(p, v), several(p), m


@settings(max_examples=300)
@given(cases())
def test_as_the_slow_simulation(case: tuple[Floats, Floats, Floats, int]) -> None:
    forward, backward, transfer, m = case
    p, _ = forward.shape
    finished = simulated(forward, backward, transfer, m)
    played = play(forward, backward, transfer, m)
    assert played.makespan_s == pytest.approx(max(finished.values()), rel=1e-12, abs=1e-12)
    for rank in range(p):
        of_rank = [end for (kind, stage, _), end in finished.items() if kind == "backward" and stage % p == rank]
        assert played.last_backward_end_s[rank] == pytest.approx(max(of_rank), rel=1e-12, abs=1e-12)
        assert played.busy_s[rank] == pytest.approx(m * (forward[rank] + backward[rank]).sum(), rel=1e-12)
    line = timeline(forward, backward, transfer, m)
    assert len(line.rank) == len(finished) == 2 * m * forward.size
    for rank, chunk, batch, kind, start, end in zip(
        line.rank, line.chunk, line.micro_batch, line.kind, line.start_s, line.end_s, strict=True
    ):
        name = "forward" if kind == FORWARD else "backward"
        takes = (forward if kind == FORWARD else backward)[rank, chunk]
        assert end == pytest.approx(finished[name, chunk * p + rank, batch], rel=1e-12, abs=1e-12)
        assert start == pytest.approx(end - takes, rel=1e-9, abs=1e-9)


@given(cases(), st.data())
def test_nothing_ends_sooner_where_something_takes_longer(
    case: tuple[Floats, Floats, Floats, int], data: st.DataObject
) -> None:
    forward, backward, transfer, m = case
    before = play(forward, backward, transfer, m)
    which = data.draw(st.sampled_from([forward, backward, transfer]))
    which.reshape(-1)[data.draw(st.integers(0, which.size - 1))] += data.draw(st.floats(0.01, 5.0))
    after = play(forward, backward, transfer, m)
    assert after.makespan_s >= before.makespan_s
    assert np.all(after.last_backward_end_s >= before.last_backward_end_s)


@given(cases())
def test_no_schedule_beats_its_busiest_rank(case: tuple[Floats, Floats, Floats, int]) -> None:
    forward, backward, transfer, m = case
    played = play(forward, backward, transfer, m)
    assert played.makespan_s >= max(played.busy_s) * (1 - 1e-12)
    assert played.makespan_s == max(played.last_backward_end_s)


@given(cases())
def test_doubled_times_are_a_doubled_step(case: tuple[Floats, Floats, Floats, int]) -> None:
    forward, backward, transfer, m = case
    once = play(forward, backward, transfer, m).makespan_s
    assert play(2 * forward, 2 * backward, 2 * transfer, m).makespan_s == 2 * once


# ------------------------------------------------------------------------------- agreement with the rest of the model


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("v", range(1, 5))
def test_every_operation_once_and_no_deadlock(p: int, v: int) -> None:
    for m in range(p, 5 * p, p) if v > 1 else range(1, 13):
        for rank in range(p):
            found = operations(p, v, m, rank)
            expected = {(kind, chunk, batch) for kind in (0, 1) for chunk in range(v) for batch in range(m)}
            assert len(found) == len(set(found)) == 2 * m * v
            assert set(found) == expected
        assert np.isfinite(play(equal(p, v, 1.0), equal(p, v, 1.0), 0.1, m).makespan_s)


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("v", range(1, 5))
def test_memory_counts_what_the_schedule_holds(p: int, v: int) -> None:
    """Forwards less backwards done so far, at their highest: the chunks in flight that memory is computed from."""
    for m in range(p, 5 * p, p) if v > 1 else range(1, 13):
        for rank in range(p):
            steps = [1 if kind == FORWARD else -1 for kind, _, _ in operations(p, v, m, rank)]
            assert max(np.cumsum(steps)) == stages.chunks_in_flight(p, v, m, stage=rank), (m, rank)


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Layers, stages, virtual stages, micro-batches: even, or with some layers less on the first and the last chunk."""
    p = draw(st.integers(1, 6))
    v = draw(st.integers(1, 4)) if p > 1 else 1
    groups = draw(st.integers(1, 5))
    chunk, lighter = draw(st.integers(1, 8)), draw(st.integers(0, 6))
    lighter = lighter if p * v > 1 and chunk > (lighter + 1) // 2 else 0
    return p * v * chunk - lighter, p, v, groups * p if v > 1 else groups


@settings(max_examples=300)
@given(splits(), st.lists(SECONDS, min_size=7, max_size=7))
def test_no_chain_is_longer_than_the_schedule(case: tuple[int, int, int, int], seconds: list[float]) -> None:
    """The factored model's chains, as coefficients of the durations, against the schedule of these durations."""
    layers, p, v, m = case
    f, b, head_f, head_b, embed_f, embed_b, way = seconds
    split = np.array(stages.layers_of_stages(layers, p, v), dtype=np.float64)
    forward, backward = split * f, split * b
    forward[0, 0] += embed_f
    backward[0, 0] += embed_b
    forward[-1, -1] += head_f
    backward[-1, -1] += head_b
    makespan_s = play(forward, backward, way, m).makespan_s
    model = Model(
        name="any", layers=layers, hidden=64, heads=1, kv_heads=1, head_size=64, ffn_hidden=64, gated=False,
        vocabulary=64, tied_embeddings=True,
    )  # fmt: skip
    for name in chains.NAMES:
        length = float(chains.layers_of_chain(model, p, v, m, name, "dense")) * (f + b) + sum(
            float(chains.ends_of_chain(model, p, v, m, name, part)) * takes
            for part, takes in zip(chains.ENDS, seconds[2:], strict=True)
        )
        assert length <= makespan_s * (1 + 1e-12) + 1e-12, name


@pytest.mark.parametrize("layers", [6, 22, 30, 46])
def test_memory_counts_the_layers_of_the_chunks_that_are_held(layers: int) -> None:
    """Chunks of unequal size, interleaved: the most layers whose activations a rank holds while it plays its order."""
    model = Model(
        name="any", layers=layers, hidden=64, heads=1, kv_heads=1, head_size=64, ffn_hidden=64, gated=False,
        vocabulary=64, tied_embeddings=True,
    )  # fmt: skip
    tried = 0
    for p in range(1, 9):
        for v in range(1, 9):
            if not stages.split_is_legal(layers, p, v) or (v > 1 and p == 1):
                continue
            split = stages.layers_of_stages(layers, p, v)
            for m in range(p, 7 * p, p) if v > 1 else (1, 2, p, 3 * p):
                for rank in range(p):
                    held = np.cumsum([split[rank][c] * (1 - 2 * kind) for kind, c, _ in operations(p, v, m, rank)])
                    assert max(held) == stages.layers_in_flight(model, p, v, m, stage=rank), (p, v, m, rank)
                    tried += 1
    assert tried > 50
