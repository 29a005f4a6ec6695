"""Tangents of the exponential: below it everywhere, and near enough where it is a share of the objective."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.relax import tangents
from codesign.relax.tangents import FIRST_ERROR, MOST, SMALL, WIDEST, points

LOGS = st.floats(-40.0, 40.0)


def envelope(at: list[float], y: np.ndarray) -> np.ndarray:
    """The largest tangent, or zero; shape of `y`."""
    found = np.zeros_like(y)
    for point in at:
        found = np.maximum(found, math.exp(point) * (1.0 + y - point))
    return found


@given(LOGS, LOGS, LOGS, LOGS)
def test_no_tangent_is_above_the_exponential(one: float, other: float, log_scale: float, y: float) -> None:
    """Anywhere, also far outside the range that the tangents were laid for."""
    at = points(min(one, other), max(one, other), math.exp(log_scale))
    assert envelope(at, np.array([y]))[0] <= math.exp(y) * (1.0 + 1e-12)


@given(LOGS, st.floats(0.0, 30.0), st.floats(-12.0, 12.0))
def test_points_lie_in_the_range_from_above_downwards(lowest: float, width: float, shift: float) -> None:
    highest = lowest + width
    scale = math.exp(highest + shift)
    at = points(lowest, highest, scale)
    if math.exp(highest) <= SMALL * scale * (1 - 1e-9):
        assert at == []
        return
    assert len(at) <= MOST
    assert all(lowest <= point <= highest for point in at)
    assert all(above > below for above, below in itertools.pairwise(at))
    assert all(above - below <= WIDEST * (1 + 1e-12) for above, below in itertools.pairwise(at))
    if at:
        assert at[0] == highest


@given(LOGS, st.floats(0.0, 30.0), st.floats(-1.0, 12.0))
def test_the_first_error_is_what_it_says(lowest: float, width: float, shift: float) -> None:
    """What the tangents miss is at most `FIRST_ERROR` of the objective, where the term is at most e times that."""
    highest = lowest + width
    scale = math.exp(highest + shift)
    at = points(lowest, highest, scale)
    assert len(at) < MOST
    y = np.linspace(lowest, highest, 2000)
    assert np.all(np.exp(y) - envelope(at, y) <= FIRST_ERROR * scale * 1.01)


def test_the_distance_is_the_widest_that_the_error_allows() -> None:
    """Midway between tangents at distance d the error is e^y d²/8: d² = 8 x 0.002 at a term as large as the objective.

    So the second tangent stands sqrt(0.016) = 0.12649 below the first.
    """
    at = points(-10.0, 0.0, 1.0)
    assert at[0] - at[1] == pytest.approx(0.126491, abs=1e-6)
    middle = np.array([(at[0] + at[1]) / 2])
    missed = (np.exp(middle) - envelope(at, middle))[0]
    assert 0.9 * FIRST_ERROR < missed < FIRST_ERROR  # e^y at the middle is 6 % below that at the first
    # a term of a thousandth of the objective: 8 x 0.002 / 0.001 = 16, so the widest distance
    at = points(-30.0, math.log(1e-3), 1.0)
    assert at == pytest.approx([math.log(1e-3), math.log(1e-3) - WIDEST])


def test_a_small_term_gets_none() -> None:
    assert points(-30.0, math.log(SMALL) - 1e-6, 1.0) == []
    assert len(points(-30.0, math.log(SMALL) + 1e-6, 1.0)) == 2
    assert points(-30.0, math.log(SMALL * 7.0) - 1e-6, 7.0) == []


def test_a_term_of_one_value_gets_one_tangent() -> None:
    assert points(0.0, 0.0, 1.0) == [0.0]


def test_a_term_far_above_the_objective_gets_no_more_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tangents, "MOST", 5)
    at = points(-10.0, 20.0, 1.0)
    assert len(at) == 5
    assert at[0] == 20.0
