"""Terms: what they refuse, how they are walked, and which of them are known to vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Max, Monomial, Power, Scale, Sum, Table
from codesign.expr.term import largest, monomials, scope, total, vanishes

A = Table("a", ("x",), np.array([1.0, 2.0]))
B = Table("b", ("y", "x"), np.array([[1.0, 0.0], [0.0, 3.0], [1.0, 1.0]]))
ZERO = Table("zero", ("z",), np.zeros(3))
M, N, Z = (Monomial(name, 1.0, (table,)) for name, table in (("m", A), ("n", B), ("z", ZERO)))


@pytest.mark.parametrize("bad", [-1.0, -1e-300, math.nan, math.inf])
def test_a_table_is_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(ValueError, match="'cost' holds a negative or non-finite"):
        Table("cost", ("x",), np.array([1.0, bad]))


def test_a_table_has_one_axis_a_decision() -> None:
    with pytest.raises(ValueError, match="1 axes for 2 decisions"):
        Table("cost", ("x", "y"), np.zeros(4))
    with pytest.raises(ValueError, match="names a decision twice"):
        Table("cost", ("x", "x"), np.zeros((2, 2)))
    assert Table("cost", (), np.array(3.0)).flat().tolist() == [3.0]


def test_the_values_of_a_table_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        A.values[0] = 5.0


def test_flat_is_row_major_whatever_the_memory_order() -> None:
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert Table("t", ("a", "b"), values).flat().tolist() == [1, 2, 3, 4, 5, 6]
    assert Table("t", ("b", "a"), values.T).flat().tolist() == [1, 4, 2, 5, 3, 6]


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_coefficient_is_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(ValueError, match="'m' has coefficient"):
        Monomial("m", bad)


def test_a_maximum_needs_a_term() -> None:
    with pytest.raises(ValueError, match="maximum 'x' of nothing"):
        Max("x", ())


@pytest.mark.parametrize("bad", [0.5, 0.999999, 0.0, -2.0, math.nan])
def test_a_power_is_convex(bad: float) -> None:
    with pytest.raises(ValueError, match="below 1"):
        Power("p", M, bad)


def test_monomials_come_depth_first_with_scaling_ones() -> None:
    by = Monomial("by", 2.0, (B,))
    term = Sum("s", (Scale("c", by, Max("x", (N, M))), Power("p", Z, 2.0), M))
    assert [one.name for one in monomials(term)] == ["by", "n", "m", "z", "m"]


def test_scope_is_in_order_of_first_appearance() -> None:
    assert scope(Sum("s", (N, Z, M))) == ("y", "x", "z")
    assert scope(Scale("c", Z, N)) == ("z", "y", "x")
    assert scope(Monomial("one", 1.0)) == ()


def test_vanishing_is_seen_through_every_kind_of_term() -> None:
    assert not vanishes(N)  # some zeros, not all
    assert vanishes(Z)
    assert vanishes(Monomial("m", 0.0, (A,)))
    assert vanishes(Monomial("m", 2.0, (A, ZERO)))
    assert vanishes(Sum("s", ()))
    assert vanishes(Sum("s", (Z, Z)))
    assert not vanishes(Sum("s", (Z, M)))
    assert vanishes(Max("x", (Z,)))
    assert not vanishes(Max("x", (M, Z)))
    assert vanishes(Scale("c", Z, M))
    assert vanishes(Scale("c", M, Z))
    assert not vanishes(Scale("c", M, N))
    assert vanishes(Power("p", Z, 2.0))
    assert not vanishes(Power("p", M, 2.0))


def test_total_drops_what_vanishes() -> None:
    found = total("t", [Z, M, Scale("c", Z, N), N], "s")
    assert found.terms == (M, N)
    assert (found.name, found.unit) == ("t", "s")
    assert total("t", [Z]).terms == ()


def test_largest_is_the_term_itself_when_one_is_left() -> None:
    assert largest("x", [Z, M]) is M
    several = largest("x", [M, Z, N], "s")
    assert isinstance(several, Max)
    assert several.terms == (M, N)
    nothing = largest("x", [Z], "s")
    assert isinstance(nothing, Sum)
    assert nothing.terms == ()


@given(st.data())
def test_what_vanishes_is_zero_everywhere(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    tables = [*data.draw(st.lists(naive.tables(space), max_size=2)), Table("zero", (), np.array(0.0))]
    term = data.draw(naive.terms(tables))
    if vanishes(term):
        assert all(naive.value(term, design) == 0.0 for design in naive.designs(space))
