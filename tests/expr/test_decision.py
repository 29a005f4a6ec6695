"""Decisions, spaces, and the flat index that everything in bulk rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Decision, Space
from codesign.expr.decision import flat_index

TP = Decision("tp", (1, 2, 4, 8))
NIC = Decision("nic", ("200g", "400g"))
LAYOUT = Decision("layout", ((1, 8), (2, 4), None))
SPACE = Space([TP, NIC, LAYOUT])


def test_a_code_is_the_position_in_the_list() -> None:
    assert len(TP) == 4
    assert [TP.code(value) for value in (1, 2, 4, 8)] == [0, 1, 2, 3]
    assert LAYOUT.code(None) == 2
    with pytest.raises(KeyError):
        TP.code(3)


def test_numbers_are_the_values_as_floats() -> None:
    numbers = TP.numbers()
    assert numbers.dtype == np.float64
    assert numbers.tolist() == [1.0, 2.0, 4.0, 8.0]


def test_a_decision_needs_a_value() -> None:
    with pytest.raises(ValueError, match="'tp' has no value"):
        Decision("tp", ())


@pytest.mark.parametrize("values", [(1, 2, 1), (1, 1.0), (0, False)])
def test_values_differ(values: tuple[Any, ...]) -> None:
    """1 and 1.0 are equal and hash alike, so one code would stand for both."""
    with pytest.raises(ValueError, match="lists a value twice"):
        Decision("tp", values)


def test_space_keeps_the_order_and_knows_sizes() -> None:
    assert SPACE.names == ("tp", "nic", "layout")
    assert SPACE["nic"] is NIC
    assert "tp" in SPACE
    assert "pp" not in SPACE
    assert SPACE.size("layout") == 3
    assert SPACE.sizes(("layout", "tp")) == (3, 4)
    assert SPACE.sizes(()) == ()
    assert SPACE.combinations() == 4 * 2 * 3
    assert Space([]).combinations() == 1


def test_names_differ() -> None:
    with pytest.raises(ValueError, match="share a name"):
        Space([TP, Decision("tp", (1,))])


@given(st.sampled_from(TP.values), st.sampled_from(NIC.values), st.sampled_from(LAYOUT.values))
def test_decode_undoes_encode(tp: int, nic: str, layout: object) -> None:
    values = {"tp": tp, "nic": nic, "layout": layout}
    columns = SPACE.encode(values)
    assert all(column.dtype == np.intp and column.shape == (1,) for column in columns.values())
    assert SPACE.decode(columns, 0) == values


def test_encode_refuses_what_is_not_listed() -> None:
    with pytest.raises(KeyError):
        SPACE.encode({"tp": 3, "nic": "200g", "layout": None})
    with pytest.raises(KeyError):
        SPACE.encode({"tp": 2, "nic": "200g"})


def test_decode_takes_one_row_of_the_columns_given() -> None:
    columns = {"layout": np.array([0, 2, 1]), "tp": np.array([3, 1, 0])}
    assert SPACE.decode(columns, 1) == {"layout": None, "tp": 2}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 1000))
def test_flat_index_is_row_major(sizes: list[int], rows: int, seed: int) -> None:
    """Row i of the columns finds in the flattened array what its codes find in the array itself."""
    generator = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(len(sizes))]
    columns = {name: generator.integers(0, size, rows) for name, size in zip(names, sizes, strict=True)}
    values = np.arange(np.prod(sizes)).reshape(sizes)
    index = flat_index(names, sizes, columns)
    assert index.shape == (rows,)
    for row in range(rows):
        assert values.reshape(-1)[index[row]] == values[tuple(columns[name][row] for name in names)]


def test_flat_index_leaves_the_columns_alone() -> None:
    columns = {"a": np.array([1, 0]), "b": np.array([2, 1])}
    assert flat_index(("a", "b"), (2, 3), columns).tolist() == [1 * 3 + 2, 0 * 3 + 1]
    assert columns["a"].tolist() == [1, 0]
    assert columns["b"].tolist() == [2, 1]
