"""Rows of floats -> rows of integers: what satisfies the first satisfies the second, checked in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.relax.rows import INFINITY, Row, Variable
from codesign.relax.scaling import Domain, IntegerRow, domain, integer_rows

CHOICE = Variable("z", 0.0, 1.0, True)


def row(coefficients: list[float], lower: float = -INFINITY, upper: float = INFINITY) -> Row:
    return Row("r", np.arange(len(coefficients)), np.array(coefficients, dtype=np.float64), lower, upper)


def integers(row: Row, variables: list[Variable]) -> list[IntegerRow]:
    return integer_rows(row, [domain(v) for v in variables], np.array([v.binary for v in variables], dtype=bool))


def ceiling(value: float, unit: float) -> int:
    """The integer that a design takes for a value: exact, as the unit and the value are fractions."""
    return math.ceil(Fraction(value) / Fraction(unit))


def activity(row: Row, values: list[float]) -> Fraction:
    pairs = zip(row.coefficients.tolist(), row.columns.tolist(), strict=True)
    return sum((Fraction(c) * Fraction(values[i]) for c, i in pairs), Fraction(0))


def holds(row: IntegerRow, values: list[int]) -> bool:
    total = sum(c * values[int(i)] for c, i in zip(row.coefficients, row.columns, strict=True))
    return (row.lower is None or total >= row.lower) and (row.upper is None or total <= row.upper)


def below(value: Fraction) -> float:
    """A double that is not above a fraction."""
    found = float(value)
    return found if Fraction(found) <= value else math.nextafter(found, -INFINITY)


# -- random rows

SIZES = st.integers(-12, 12).map(lambda exponent: 10.0**exponent)
SHARES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))


@st.composite
def variables_and_points(draw: st.DrawFn) -> tuple[list[Variable], list[float]]:
    """Choices and values of very different ranges, and a point within their bounds."""
    variables, point = [], []
    for number in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            variables.append(CHOICE)
            point.append(float(draw(st.booleans())))
            continue
        upper = draw(SIZES) * (1.0 + draw(SHARES))
        lower = draw(st.sampled_from([0.0, -1.0, 0.25])) * upper
        variables.append(Variable(f"x{number}", lower, upper, False))
        point.append(min(max(lower + draw(SHARES) * (upper - lower), lower), upper))
    return variables, point


@st.composite
def coefficients_of(draw: st.DrawFn, count: int) -> list[float]:
    """Zeros, whole numbers, and numbers of very different sizes."""
    mixed = st.builds(
        lambda size, share, sign: sign * size * (0.1 + share), SIZES, SHARES, st.sampled_from([-1.0, 1.0])
    )
    one = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 3.0, -7.0]), mixed)
    return draw(st.lists(one, min_size=count, max_size=count))


@given(st.data())
def test_a_point_of_the_row_is_a_point_of_the_integer_rows(data: st.DataObject) -> None:
    variables, point = data.draw(variables_and_points())
    coefficients = data.draw(coefficients_of(len(variables)))
    exact = activity(row(coefficients), point)
    # Often with no room at all: then the least that rounding adds would cut the point off.
    room = Fraction(data.draw(st.sampled_from([0.0, 0.0, 1e-9, 1.0])))
    sides = data.draw(st.sampled_from(["lower", "upper", "both"]))
    lower = below(exact - room) if sides != "upper" else -INFINITY
    upper = -below(-exact - room) if sides != "lower" else INFINITY
    domains = [domain(v) for v in variables]
    taken = [ceiling(value, d.unit) for value, d in zip(point, domains, strict=True)]
    assert all(d.lower <= n <= d.upper for n, d in zip(taken, domains, strict=True))
    found = integers(row(coefficients, lower, upper), variables)
    assert 1 <= len(found) <= 2
    assert all(holds(one, taken) for one in found)
    for one in found:  # what CP-SAT takes: 64-bit numbers whose sums stay below 2^62
        most = sum(abs(c) * domains[int(i)].most for c, i in zip(one.coefficients, one.columns, strict=True))
        assert most + max(abs(one.lower or 0), abs(one.upper or 0)) < 2**62


@given(st.data())
def test_a_row_is_weakened_by_no_more_than_its_last_digits(data: st.DataObject) -> None:
    """A point that misses the row by 10^-7 of the row's size is cut off: the integer rows are not just anything."""
    variables, point = data.draw(variables_and_points())
    coefficients = data.draw(coefficients_of(len(variables)))
    domains = [domain(v) for v in variables]
    taken = [ceiling(value, d.unit) for value, d in zip(point, domains, strict=True)]
    rounded = [n * d.unit for n, d in zip(taken, domains, strict=True)]
    exact = activity(row(coefficients), rounded)
    size = sum(
        (abs(Fraction(c)) * Fraction(d.unit) * max(d.most, 1) for c, d in zip(coefficients, domains, strict=True)),
        abs(exact),
    )
    if size == 0:
        return
    missed = exact + size / 10**7
    above = row(coefficients, lower=-below(-missed))
    assert not all(holds(one, taken) for one in integers(above, variables))
    under = row(coefficients, upper=below(exact - size / 10**7))
    assert not all(holds(one, taken) for one in integers(under, variables))


@pytest.mark.parametrize("small", [1e-18, 1e-30, 1e-100, 1e-290])
def test_coefficients_of_which_one_is_nothing_beside_the_other(small: float) -> None:
    """The small coefficient is rounded away, and the right side is lowered by what it could have been: less than 1."""
    variables = [Variable("x", 0.0, 1.0, False), Variable("y", 0.0, 1.0, False)]
    (found,) = integers(row([1.0, small], lower=0.5), variables)
    half = 2**29
    assert holds(found, [half, 2**30])
    assert holds(found, [half, 0])
    assert not holds(found, [half - 3, 2**30])


# -- by hand


def test_units_by_hand() -> None:
    """The unit is the power of two that makes the range at most 2^30 units."""
    assert domain(CHOICE) == Domain(1.0, 0, 1)
    assert domain(Variable("x", 0.0, 1.0, False)) == Domain(2.0**-30, 0, 2**30)
    assert domain(Variable("x", 0.0, 3.0, False)) == Domain(2.0**-28, 0, 3 * 2**28)
    assert domain(Variable("x", -5.0, 3.0, False)) == Domain(2.0**-27, -5 * 2**27, 3 * 2**27)
    assert domain(Variable("x", -5.0, 3.0, False)).most == 5 * 2**27
    # 2^-29 x 0.1 is no whole number of units of 2^-30: bounds are widened
    assert domain(Variable("x", 0.1 * 2.0**-29, 1.0, False)) == Domain(2.0**-30, 0, 2**30)


def test_a_range_that_is_nothing_is_widened() -> None:
    assert domain(Variable("x", 0.0, 0.0, False)) == Domain(1.0, 0, 0)
    assert domain(Variable("x", 0.0, 1e-250, False)) == Domain(1.0, 0, 1)
    assert domain(Variable("x", -1e-250, 1e-250, False)) == Domain(1.0, -1, 1)


def test_rows_of_choices_with_whole_coefficients_stay_as_they_are() -> None:
    (found,) = integers(row([1.0, 1.0, -2.0], 1.0, 1.0), [CHOICE] * 3)
    assert (found.coefficients, found.lower, found.upper) == ((1, 1, -2), 1, 1)
    (found,) = integers(row([1.0, 1.0], lower=0.5), [CHOICE] * 2)
    assert (found.lower, found.upper) == (1, None)
    (found,) = integers(row([1.0, 1.0], upper=1.5), [CHOICE] * 2)
    assert (found.lower, found.upper) == (None, 1)
    # 0.1 + 0.2 is a last digit above 0.3, and so may be any right side
    (found,) = integers(row([1.0, 1.0], lower=1.0 + 1e-12, upper=2.0 - 1e-12), [CHOICE] * 2)
    assert (found.lower, found.upper) == (1, 2)


def test_a_whole_coefficient_of_a_value_is_scaled() -> None:
    """x >= 0.3 with x in 0 .. 1: activity 1.3, so the factor is 2^(57 - 1); the coefficient 2^-30 x 2^56 = 2^26."""
    (found,) = integers(row([1.0], lower=0.3), [Variable("x", 0.0, 1.0, False)])
    assert found.coefficients == (2**26,)
    assert found.lower is not None
    # 0.3 x 2^30 = 322122547.2: a design at 0.3 takes the ceiling of it, and nothing below is allowed
    assert holds(found, [322122548])
    assert not holds(found, [322122547])


def test_two_sides_become_two_rows_and_zeros_are_dropped() -> None:
    variables = [Variable("x", 0.0, 2.0, False), CHOICE, Variable("y", 0.0, 4.0, False)]
    above, under = integers(row([0.5, 0.0, -0.5], -1.0, 0.5), variables)
    assert above.columns.tolist() == [0, 2]
    assert under.columns.tolist() == [0, 2]
    assert [a + b for a, b in zip(above.coefficients, under.coefficients, strict=True)] == [0, 0]
    assert above.upper is None
    assert under.upper is None


def test_rows_without_coefficients() -> None:
    """0 >= 0 holds, 0 >= 1 does not; either way something is said, for a row of choices and for one of values."""
    for variables, expected in (([CHOICE], 0), ([Variable("x", 0.0, 1.0, False)], 0)):
        (found,) = integers(row([0.0], lower=0.0), variables)
        assert holds(found, [expected])
        (found,) = integers(row([0.0], lower=1.0), variables)
        assert not holds(found, [expected])


# -- overflow


@pytest.mark.parametrize("bad", [INFINITY, -INFINITY, math.nan])
def test_a_coefficient_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(OverflowError, match="row 'r' cannot be scaled"):
        integers(row([1.0, bad], lower=1.0), [Variable("x", 0.0, 1.0, False)] * 2)


def test_a_product_beyond_the_largest_double_is_refused() -> None:
    with pytest.raises(OverflowError, match="row 'r' cannot be scaled"):
        integers(row([1e200], lower=1.0), [Variable("x", 0.0, 1e200, False)])


def test_the_largest_numbers_that_fit() -> None:
    """1e300 x with x up to 1e7, at least 1e306: x >= 1e6, in units of 2^(24 - 30)."""
    (found,) = integers(row([1e300], lower=1e306), [Variable("x", 0.0, 1e7, False)])
    assert holds(found, [10**6 * 64])
    assert not holds(found, [10**6 * 64 - 2])


def test_a_row_of_nothing_is_left_open() -> None:
    """Numbers below 10^-200 on both sides: no factor of 2^1000 is needed to say that nothing follows."""
    for least in (1e-300, -1e-300):
        (found,) = integers(row([1e-300, -1e-310], lower=least), [Variable("x", 0.0, 1.0, False)] * 2)
        assert holds(found, [0, 2**30])


def test_a_right_side_beyond_64_bits_stays_what_it_is() -> None:
    """z >= 1e30 is false for both choices, z >= -1e30 true; CP-SAT takes neither number as it stands."""
    for lower, truth in ((1e30, False), (-1e30, True)):
        (found,) = integers(row([1.0], lower=lower), [CHOICE])
        assert found.lower is not None
        assert abs(found.lower) < 2**62
        assert [holds(found, [n]) for n in (0, 1)] == [truth, truth]
