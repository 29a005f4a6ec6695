"""Rows laid from terms: never above the exact value of any joint choice, and exact where they claim to be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Decision, Max, Monomial, Power, Relation, Scale, Space, Table
from codesign.relax import cpsat, mathopt
from codesign.relax.lay import Relaxation
from codesign.relax.rows import INFINITY, Linear, Rows

ROUNDING = 1e-9
SEEDS = st.integers(0, 2**32 - 1)


def check_below(cases: type, case: object, relaxation: Relaxation, cap: float) -> np.ndarray:
    """Every joint choice that the cap does not exclude has an assignment of no more than its exact value."""
    kept = case.values <= cap
    found = cases.least(relaxation, case.choices[kept])
    for values in found:
        violation, name = relaxation.rows.violation(values)
        assert violation <= ROUNDING, name
    objective = found[:, relaxation.rows.objective]
    assert np.all(objective <= case.values[kept] * (1 + ROUNDING) + 1e-12 * cap)
    return objective


@given(SEEDS)
def test_every_joint_choice_is_bounded_by_its_exact_value(cases: type, seed: int) -> None:
    case = cases.random(seed)
    cap = float(case.values.max()) * (1 + 1e-6)
    check_below(cases, case, case.relaxation(cap), cap)


@given(SEEDS, st.floats(0.0, 1.0))
def test_a_cap_excludes_only_what_is_dearer(cases: type, seed: int, share: float) -> None:
    case = cases.random(seed)
    cap = case.incumbent(share) * (1 + 1e-6)
    check_below(cases, case, case.relaxation(cap), cap)


@given(SEEDS)
def test_further_tangents_stay_below_wherever_they_are_laid(cases: type, seed: int) -> None:
    """At the logarithms of all joint choices, those with a zero factor included."""
    case = cases.random(seed)
    cap = float(case.values.max()) * (1 + 1e-6)
    relaxation = case.relaxation(cap)
    for exponential in relaxation.exponentials:
        of_cluster = [relaxation.clusters.index(cluster) for cluster, _ in exponential.logs]
        for at in {exponential.at(choice[of_cluster]) for choice in case.choices[:6]}:
            relaxation.tangent(exponential, at)
    check_below(cases, case, relaxation, cap)


@given(SEEDS)
def test_monomials_over_one_cluster_are_exact(cases: type, seed: int) -> None:
    case = cases.random(seed, powers=False, single=True)
    cap = float(case.values.max()) * (1 + 1e-6)
    relaxation = case.relaxation(cap)
    assert relaxation.exponentials == []
    objective = check_below(cases, case, relaxation, cap)
    np.testing.assert_allclose(objective, case.values, rtol=ROUNDING)


@given(SEEDS)
def test_the_rows_of_choices_allow_what_agrees_and_nothing_else(cases: type, seed: int) -> None:
    case = cases.random(seed)
    rows = Relaxation(case.space, case.relations, scale=1.0, cap=1.0).rows
    sizes = [len(relation) for relation in case.relations]
    agree = {choice for choice, _ in cases.agreeing(case.relations)}
    for choice in np.ndindex(*sizes):
        values = np.concatenate([np.eye(size)[picked] for size, picked in zip(sizes, choice, strict=True)])
        assert (rows.violation(values)[0] == 0.0) == (choice in agree)


# -- solvers on the rows


@pytest.mark.parametrize("seed", range(20))
def test_solvers_agree_and_stay_below_the_minimum(cases: type, seed: int) -> None:
    """Both find the least value of the rows, which enumeration gives without them, and it is below the true minimum."""
    case = cases.random(seed)
    cap = case.incumbent() * (1 + 1e-6)
    relaxation = case.relaxation(cap)
    kept = case.values <= cap
    least = cases.least(relaxation, case.choices)
    possible = [relaxation.rows.violation(values)[0] <= ROUNDING for values in least]
    relaxed = float(least[possible, relaxation.rows.objective].min())
    assert np.all(np.array(possible)[kept])
    for outcome in (cpsat.solve(relaxation.rows, time_s=20.0), mathopt.solve(relaxation.rows, time_s=20.0)):
        assert outcome.status == "optimal"
        assert outcome.bound <= case.best * (1 + ROUNDING)
        assert outcome.bound <= outcome.value
        assert outcome.bound == pytest.approx(relaxed, abs=1e-4 * cap)
        assert outcome.value == pytest.approx(relaxed, abs=1e-4 * cap)
        assert relaxation.rows.violation(outcome.chosen)[0] <= 1e-6


@pytest.mark.parametrize("seed", range(100, 112))
def test_tangents_where_it_stands_make_the_bound_meet_the_minimum(cases: type, seed: int) -> None:
    case = cases.random(seed, powers=False)
    cap = case.incumbent() * (1 + 1e-6)
    relaxation = case.relaxation(cap)
    for _ in range(60):
        outcome = cpsat.solve(relaxation.rows, time_s=20.0)
        assert outcome.bound <= case.best * (1 + ROUNDING)
        laid = 0
        for exponential in relaxation.exponentials:
            picked = [
                int(np.argmax(outcome.chosen[cluster.first : cluster.first + len(cluster.relation)]))
                for cluster, _ in exponential.logs
            ]
            at = exponential.at(picked)
            if at >= exponential.lowest and np.exp(at) - outcome.chosen[exponential.variable] > 1e-6 * cap:
                relaxation.tangent(exponential, at)
                laid += 1
        if not laid:
            break
    assert outcome.bound == pytest.approx(case.best, abs=1e-4 * cap)
    assert mathopt.solve(relaxation.rows, time_s=20.0).bound == pytest.approx(case.best, abs=1e-4 * cap)


# -- by hand

SPACE = Space([Decision("a", (0, 1)), Decision("b", (0, 1, 2)), Decision("c", (0, 1))])
LEFT = Relation.product("left", SPACE, ("a", "b"))
RIGHT = Relation.product("right", SPACE, ("b", "c"))
OF_A = Table("of a", ("a",), np.array([2.0, 8.0]))
OF_B = Table("of b", ("b",), np.array([1.0, 4.0, 16.0]))
OF_C = Table("of c", ("c",), np.array([3.0, 5.0]))


def laid(**arguments: float) -> Relaxation:
    return Relaxation(SPACE, (LEFT, RIGHT), **{"scale": 100.0, "cap": 1000.0, **arguments})


def test_a_product_over_two_clusters_by_hand() -> None:
    """a in one cluster, c in the other: between log 6 and log 40, exact at tangents, and nowhere above."""
    relaxation = laid()
    found = relaxation.lower(Monomial("ac", 1.0, (OF_A, OF_C)))
    (exponential,) = relaxation.exponentials
    assert dict(found.coefficients) == {exponential.variable: 1.0}
    assert exponential.lowest == pytest.approx(np.log(2 * 3))
    assert exponential.highest == pytest.approx(np.log(8 * 5))
    # left tuples are (a, b) row by row: number 3 has a = 1; right tuples (b, c): number 0 has c = 0
    assert exponential.at([3, 0]) == pytest.approx(np.log(8 * 3))
    assert relaxation.rows.variables[exponential.variable].upper == pytest.approx(40.0)


def test_a_shared_decision_counts_for_the_cluster_that_holds_the_whole_monomial() -> None:
    """b lies in both: a product of a and b is exact in the left one, and one of b and c in the right one."""
    relaxation = laid()
    left = relaxation.lower(Monomial("ab", 0.5, (OF_A, OF_B)))
    values = {0: 1, 1: 4, 2: 16, 3: 4, 4: 16, 5: 64}  # 0.5 x (2, 8) x (1, 4, 16)
    assert dict(left.coefficients) == values
    right = relaxation.lower(Monomial("bc", 1.0, (OF_B, OF_C)))
    assert dict(right.coefficients) == {6: 3, 7: 5, 8: 12, 9: 20, 10: 48, 11: 80}  # (1, 4, 16) x (3, 5)
    joint = Table("joint", ("c", "b"), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    right = relaxation.lower(Monomial("joint", 1.0, (joint,)))
    assert dict(right.coefficients) == {6: 1, 7: 4, 8: 2, 9: 5, 10: 3, 11: 6}
    assert relaxation.exponentials == []


def test_a_term_is_laid_once() -> None:
    """Equal products, in any order and under any name, share their variable; equal factors their logarithm."""
    relaxation = laid()
    first = relaxation.lower(Monomial("ac", 2.0, (OF_A, OF_C)))
    size = len(relaxation.rows.variables)
    assert relaxation.lower(Monomial("ca", 2.0, (OF_C, OF_A))) is first
    assert relaxation.lower(Scale("s", Monomial("a", 2.0, (OF_A,)), Monomial("c", 1.0, (OF_C,)))) is first
    assert len(relaxation.rows.variables) == size
    relaxation.lower(Monomial("acc", 2.0, (OF_A, OF_C, OF_C)))  # the left logarithm again: two new variables, not three
    assert len(relaxation.rows.variables) == size + 2


def test_what_is_the_same_for_all_tuples_is_a_number() -> None:
    relaxation = laid()
    same = Table("same", ("c",), np.array([4.0, 4.0]))
    number = Table("number", (), np.array(0.25))
    found = relaxation.lower(Monomial("m", 3.0, (OF_A, same, number)))
    assert dict(found.coefficients) == {0: 6, 1: 6, 2: 6, 3: 24, 4: 24, 5: 24}
    assert relaxation.exponentials == []
    assert relaxation.lower(Monomial("twelve", 3.0, (same,))) == Linear({}, 12.0)
    zero = Table("zero", ("c",), np.zeros(2))
    assert relaxation.lower(Monomial("nothing", 3.0, (OF_A, zero))) == Linear({})


def test_a_zero_factor_costs_nothing_even_where_all_else_is_beyond_the_cap() -> None:
    """(0, 10) x (1, 2) with the cap at 5: what is not zero is excluded, and what is zero stays at zero.

    A tangent at log 5 would ask for 5 x (1 + y - log 5) > 0 from the zero, whose stand-in for a logarithm is one below
    log 10.
    """
    relaxation = laid(scale=5.0, cap=5.0)
    zero_or_ten = Table("a", ("a",), np.array([0.0, 10.0]))
    one_or_two = Table("c", ("c",), np.array([1.0, 2.0]))
    rows = relaxation.rows
    rows.objective = rows.continuous("objective", 0.0, 5.0)
    found = relaxation.lower(Monomial("ac", 1.0, (zero_or_ten, one_or_two)))
    rows.add("objective", Linear({rows.objective: 1.0}).plus(found, -1.0), 0.0)
    # all of c: the larger stand-in too
    for c in (0, 1):
        kept = rows.add("c", relaxation.clusters[1].sum_of((RIGHT.columns["c"] == c).astype(float)), 1.0)
        for solver in (cpsat, mathopt):
            outcome = solver.solve(rows, time_s=20.0)
            assert outcome.status == "optimal"
            assert outcome.bound == 0.0
            assert outcome.value <= 1e-5
        rows.rows.pop(kept)
    rows.add("a is 1", relaxation.clusters[0].sum_of((LEFT.columns["a"] == 1).astype(float)), 1.0)
    assert cpsat.solve(rows, time_s=20.0).status == "infeasible"


def test_maximum_power_and_factor_by_hand(cases: type) -> None:
    """max(a, 3) x b over the left cluster, squared, with a factor of 4: exact where a tangent of the square stands."""
    base = Scale("b max", Monomial("b", 1.0, (OF_B,)), Max("max", (Monomial("a", 1.0, (OF_A,)), Monomial("3", 3.0))))
    term = Scale("4 x square", Monomial("4", 4.0), Power("square", base, 2.0))
    case = cases.of(SPACE, (LEFT, RIGHT), term)
    # b max(a, 3) = (1, 4, 16) x (3, 8) = 3, 12, 48, 8, 32, 128: the largest, 4 x 128², is the end of the grid
    assert sorted(set(case.values.tolist())) == [4.0 * v**2 for v in (3, 8, 12, 32, 48, 128)]
    cap = 4.0 * 128.0**2 * (1 + 1e-6)
    objective = check_below(cases, case, case.relaxation(cap), cap)
    # 33 points on 0 .. 256 stand 8 apart, so at most (8 / 2)² = 16 is missing, and nothing at multiples of 8
    assert np.all(case.values - objective <= 16 * (1 + ROUNDING))
    at_points = np.isin(case.values, [4.0 * v**2 for v in (8, 12, 32, 48, 128)])
    np.testing.assert_allclose(objective[at_points], case.values[at_points], rtol=1e-9)


def test_what_cannot_be_laid_is_refused() -> None:
    across = Table("across", ("a", "c"), np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"'across' over \('a', 'c'\) lies in no cluster"):
        laid().lower(Monomial("m", 1.0, (across,)))
    with pytest.raises(ValueError, match="cluster 'left' has no tuple left"):
        Relaxation(SPACE, (LEFT.where(np.zeros(len(LEFT), dtype=bool)), RIGHT), scale=1.0, cap=1.0)


def test_clusters_without_a_common_choice_are_infeasible() -> None:
    left = LEFT.where(LEFT.columns["b"] == 0)
    right = RIGHT.where(RIGHT.columns["b"] != 0)
    relaxation = Relaxation(SPACE, (left, right), scale=1.0, cap=1.0)
    relaxation.rows.objective = relaxation.rows.continuous("objective", 0.0, 1.0)
    for solver in (cpsat, mathopt):
        assert solver.solve(relaxation.rows, time_s=20.0).status == "infeasible"


# -- rows


def test_linear_expressions_add_up() -> None:
    one, other = Linear({0: 1.0, 1: 2.0}, 3.0), Linear({1: 5.0, 2: -1.0}, 4.0)
    assert one.plus(other, 2.0) == Linear({0: 1.0, 1: 12.0, 2: -2.0}, 11.0)
    assert one == Linear({0: 1.0, 1: 2.0}, 3.0)


def test_a_row_moves_its_constant_to_the_right_and_drops_zeros() -> None:
    rows = Rows()
    x, y = rows.continuous("x", 0.0, 1.0), rows.continuous("y", 0.0, 1.0)
    index = rows.add("r", Linear({x: 2.0, y: 0.0}, 3.0), lower=4.0)
    row = rows.rows[index]
    assert (row.columns.tolist(), row.coefficients.tolist(), row.lower, row.upper) == ([x], [2.0], 1.0, INFINITY)
    rows.add("s", Linear({y: 1.0}), upper=1.0)
    rows.replace(index, "t", Linear({y: 1.0}), 0.5)
    assert [(one.name, one.lower) for one in rows.rows] == [("t", 0.5), ("s", -INFINITY)]


def test_violation_names_the_row_or_the_bound() -> None:
    rows = Rows()
    x, z = rows.continuous("x", 0.0, 4.0), rows.binary("z")
    rows.add("x >= 3 z", Linear({x: 1.0, z: -3.0}), 0.0)
    rows.add("x <= 3", Linear({x: 1.0}), upper=3.0)
    assert rows.violation(np.array([3.0, 1.0])) == (0.0, "")
    assert rows.violation(np.array([1.0, 1.0])) == (2.0 / 5.0, "x >= 3 z")  # short of 2, of 1 + 1 + 3
    assert rows.violation(np.array([3.5, 1.0])) == (0.5 / 4.5, "x <= 3")
    assert rows.violation(np.array([-1.0, 0.0])) == (0.5, "bounds of x")
    # z is 0.5 of 1 + 1.5 over its bound, and the row 1.5 short of 1 + 3 + 4.5
    assert rows.violation(np.array([3.0, 1.5])) == (0.5 / 2.5, "bounds of z")
    assert rows.violation(np.array([0.0, -1.0]))[1] == "bounds of z"


@pytest.mark.parametrize(("lower", "upper"), [(0.0, INFINITY), (-INFINITY, 0.0), (1.0, 0.0), (0.0, float("nan"))])
def test_a_variable_without_finite_bounds_in_order_is_refused(lower: float, upper: float) -> None:
    """So no objective is unbounded, whatever rows are missing."""
    with pytest.raises(ValueError, match="'x' needs finite bounds in order"):
        Rows().continuous("x", lower, upper)
