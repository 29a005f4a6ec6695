"""Evaluation in bulk against plain Python; blocks; what is shared is computed once."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Max, Monomial, Power, Scale, Sum, Table, Term, evaluate
from codesign.expr.decision import Columns

# The package exports a function of the module's name.
module = importlib.import_module("codesign.expr.evaluate")
BLOCK = module.BLOCK

X = Table("x", ("a",), np.array([1.0, 2.0, 4.0]))
Y = Table("y", ("b", "a"), np.array([[3.0, 0.0, 5.0], [7.0, 1.0, 0.5]]))
NUMBER = Table("number", (), np.array(10.0))
EVERY_A_AND_B = {"a": np.array([0, 1, 2, 0, 1, 2]), "b": np.array([0, 0, 0, 1, 1, 1])}


@given(st.data())
def test_a_random_term_has_the_value_that_plain_python_gives(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    term = data.draw(naive.terms(data.draw(st.lists(naive.tables(space), min_size=1, max_size=4))))
    designs = naive.designs(space)
    found = evaluate(term, naive.columns(designs, space.names))
    expected = [naive.value(term, design) for design in designs]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0.0)


def test_by_hand() -> None:
    """Columns (a, b) = (0,0) (1,0) (2,0) (0,1) (1,1) (2,1); x = 1 2 4 1 2 4; y = 3 0 5 7 1 0.5."""
    x, y = Monomial("x", 1.0, (X,)), Monomial("y", 2.0, (Y,))

    def values(term: Term) -> list[float]:
        return evaluate(term, EVERY_A_AND_B).tolist()

    assert values(x) == [1, 2, 4, 1, 2, 4]
    assert values(y) == [6, 0, 10, 14, 2, 1]
    assert values(Monomial("xxy", 0.5, (X, X, Y))) == [1.5, 0, 40, 3.5, 2, 4]  # x² y / 2
    assert values(Sum("x+y", (x, y))) == [7, 2, 14, 15, 4, 5]
    assert values(Max("max", (x, y))) == [6, 2, 10, 14, 2, 4]
    assert values(Scale("10 x (x + y)", Monomial("10x", 1.0, (NUMBER, X)), Sum("x+y", (x, y)))) == [
        70,
        40,
        560,
        150,
        80,
        200,
    ]
    assert values(Power("x²", x, 2.0)) == [1, 4, 16, 1, 4, 16]
    assert values(Monomial("three", 3.0)) == [3] * 6
    assert values(Sum("nothing", ())) == [0] * 6
    assert values(Sum("x + nothing", (x, Sum("nothing", ())))) == [1, 2, 4, 1, 2, 4]


@pytest.mark.parametrize("rows", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_rows_at_the_edges_of_blocks(rows: int) -> None:
    """Against numpy's own indexing of the tables; every row differs from its neighbours in some code."""
    generator = np.random.default_rng(rows)
    columns = {"a": generator.integers(0, 3, rows), "b": generator.integers(0, 2, rows)}
    term = Max("max", (Sum("s", (Monomial("m", 2.0, (X, Y)), Monomial("x", 1.0, (X,)))), Monomial("y", 1.0, (Y,))))
    x, y = X.values[columns["a"]], Y.values[columns["b"], columns["a"]]
    found = evaluate(term, columns)
    assert found.shape == (rows,)
    np.testing.assert_array_equal(found, np.maximum(2.0 * x * y + x, y))


def test_rows_do_not_depend_on_their_block() -> None:
    rows = BLOCK + 5
    columns = {name: np.resize(column, rows) for name, column in EVERY_A_AND_B.items()}
    found = evaluate(Power("p", Monomial("m", 3.0, (X, Y)), 1.5), columns)
    np.testing.assert_array_equal(found, np.resize(found[:6], rows))


def test_a_shared_term_is_not_changed_by_those_that_use_it() -> None:
    """The bare table is the first part of a sum and of a maximum, which may build their result in place."""
    x, y = Monomial("x", 1.0, (X,)), Monomial("y", 1.0, (Y,))
    both = Sum("both", (Sum("s", (x, y)), Max("m", (x, y)), Sum("only", (x,)), x))
    expected = [  # (x + y) + max(x, y) + x + x
        (1 + 3) + 3 + 2,
        (2 + 0) + 2 + 4,
        (4 + 5) + 5 + 8,
        (1 + 7) + 7 + 2,
        (2 + 1) + 2 + 4,
        (4 + 0.5) + 4 + 8,
    ]
    assert evaluate(both, EVERY_A_AND_B).tolist() == expected


@given(st.data())
def test_each_term_is_computed_once_a_block(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    term = data.draw(naive.terms(data.draw(st.lists(naive.tables(space), min_size=1, max_size=3))))
    computed: list[Term] = []
    compute = module._Block._compute
    rows = 2 * BLOCK + 1  # three blocks
    columns = {name: np.zeros(rows, dtype=np.intp) for name in space.names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Block, "_compute", lambda block, one: computed.append(one) or compute(block, one))
        evaluate(term, columns)
    distinct = list(naive.distinct(term))
    assert len(computed) == 3 * len(distinct)
    assert {id(one) for one in computed} == {id(one) for one in distinct}


def test_columns_are_not_written_to() -> None:
    columns: Columns = {name: column.copy() for name, column in EVERY_A_AND_B.items()}
    for column in columns.values():
        column.setflags(write=False)
    evaluate(Sum("s", (Monomial("m", 2.0, (X, Y)), Monomial("y", 1.0, (Y,)))), columns)
    assert all(np.array_equal(columns[name], column) for name, column in EVERY_A_AND_B.items())


def test_one_set_of_decisions_in_two_orders() -> None:
    """The row numbers that were found for (b, a) are not those for (a, b)."""
    turned = Table("turned", ("a", "b"), np.ascontiguousarray(Y.values.T) + 100.0)
    term = Sum("s", (Monomial("y", 1.0, (Y,)), Monomial("t", 1.0, (turned,))))
    assert evaluate(term, EVERY_A_AND_B).tolist() == [2 * y + 100 for y in (3, 0, 5, 7, 1, 0.5)]


def test_a_replaced_table_is_asked_for_once_and_may_need_fewer_columns() -> None:
    asked: list[str] = []

    def least_over_b(table: Table) -> Table:
        asked.append(table.name)
        return Table("least", ("a",), table.values.min(axis=0)) if table is Y else table

    term = Sum("s", (Monomial("xy", 1.0, (X, Y)), Monomial("y", 1.0, (Y,)), Monomial("n", 1.0, (NUMBER,))))
    rows = BLOCK + 1
    found = evaluate(term, {"a": np.resize([0, 1, 2], rows)}, least_over_b)
    # least over b of y: 3, 0, 0.5; x y + y + 10 = 3 + 3 + 10, 10, 2 + 0.5 + 10
    np.testing.assert_array_equal(found, np.resize([16.0, 10.0, 12.5], rows))
    assert sorted(asked) == ["number", "x", "y"]


def test_a_missing_column_is_an_error() -> None:
    with pytest.raises(KeyError, match="b"):
        evaluate(Monomial("y", 1.0, (Y,)), {"a": np.array([0])})
