"""Bounds hold for every design that the relations allow, and are attained where they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Decision, Monomial, Reducer, Relation, Scale, Space, Sum, Table, Term, box_bounds, evaluate
from codesign.expr.bounds import least

ROUNDING = 1e-12
"""The bound and the value are the same sums and products in doubles, in one order or another."""


def bounds(term: Term, space: Space, known: Sequence[str], relations: Sequence[Relation], design: dict) -> tuple:
    """Least and greatest value as the reducers give them, for the known choices of one design."""
    columns = {name: np.array([design[name]]) for name in known} or {space.names[0]: np.zeros(1, dtype=np.intp)}
    low, high = (Reducer(space, known, relations, greatest=greatest) for greatest in (False, True))
    return float(evaluate(term, columns, low)[0]), float(evaluate(term, columns, high)[0])


@given(st.data())
def test_bounds_hold_for_every_design_that_the_relations_allow(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    term = data.draw(naive.terms(data.draw(st.lists(naive.tables(space), min_size=1, max_size=3))))
    relations = data.draw(st.lists(naive.relations(space, least=1), max_size=3))
    known = data.draw(st.lists(st.sampled_from(space.names), unique=True))
    for design in naive.designs(space):
        if all(naive.allows(relation, design) for relation in relations):
            low, high = bounds(term, space, known, relations, design)
            value = naive.value(term, design)
            assert low <= value * (1 + ROUNDING)
            assert high >= value * (1 - ROUNDING)


@given(st.data())
def test_one_table_and_one_relation_are_bounded_exactly(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    table = data.draw(naive.tables(space))
    relation = data.draw(naive.relations(space, least=1))
    known = data.draw(st.lists(st.sampled_from(space.names), unique=True))
    term = Monomial("m", 1.0, (table,))
    values: dict[tuple[int, ...], list[float]] = {}
    for design in naive.designs(space):
        if naive.allows(relation, design):
            values.setdefault(tuple(design[d] for d in known), []).append(naive.value(term, design))
    for choice, among in values.items():
        design = dict(zip(known, choice, strict=True))
        assert bounds(term, space, known, [relation], design) == (min(among), max(among))


@given(st.data())
def test_a_design_that_is_known_is_its_own_bound(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    term = data.draw(naive.terms(data.draw(st.lists(naive.tables(space), min_size=1, max_size=3))))
    relations = data.draw(st.lists(naive.relations(space), max_size=2))
    designs = naive.designs(space)
    columns = naive.columns(designs, space.names)
    for greatest in (False, True):
        found = least(term, columns, Reducer(space, space.names, relations, greatest))
        np.testing.assert_array_equal(found, evaluate(term, columns))


@st.composite
def boxes(draw: st.DrawFn, space: Space) -> dict[str, np.ndarray]:
    """Some decisions, restricted to some of their codes."""
    names = draw(st.lists(st.sampled_from(space.names), unique=True))
    codes = {d: draw(st.lists(st.integers(0, space.size(d) - 1), min_size=1)) for d in names}
    return {d: np.array(found) for d, found in codes.items()}


def inside(naive: type, space: Space, box: dict[str, np.ndarray]) -> list[dict[str, int]]:
    return [design for design in naive.designs(space) if all(design[d] in box[d] for d in box)]


@given(st.data())
def test_box_bounds_hold_for_every_design_of_the_box(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    term = data.draw(naive.terms(data.draw(st.lists(naive.tables(space), min_size=1, max_size=3))))
    box = data.draw(boxes(space))
    low, high = box_bounds(term, space, box)
    values = [naive.value(term, design) for design in inside(naive, space, box)]
    assert low <= min(values) * (1 + ROUNDING)
    assert high >= max(values) * (1 - ROUNDING)


@given(st.data())
def test_box_bounds_are_attained_where_tables_share_no_decision(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    cut = data.draw(st.integers(0, len(space.names)))
    parts = [part for part in (space.names[:cut], space.names[cut:]) if part]
    term = data.draw(naive.terms([data.draw(naive.tables(space, part)) for part in parts]))
    box = data.draw(boxes(space))
    values = [naive.value(term, design) for design in inside(naive, space, box)]
    assert box_bounds(term, space, box) == pytest.approx((min(values), max(values)), rel=ROUNDING, abs=0)


SMALL = Space([Decision("server", ("a", "b")), Decision("servers", (1, 2, 4)), Decision("nic", ("200g", "400g"))])
PRICE = Table("price", ("server", "servers"), np.array([[3.0, 6.0, 12.0], [5.0, 10.0, 20.0]]))
TIME = Table("time", ("servers", "nic"), np.array([[8.0, 7.0], [5.0, 4.0], [3.0, 2.5]]))


def test_box_bounds_by_hand() -> None:
    """price + 2 time: least and greatest of either table on its own, though they choose other numbers of servers."""
    term = Sum("s", (Monomial("price", 1.0, (PRICE,)), Monomial("time", 2.0, (TIME,))))
    assert box_bounds(term, SMALL, {}) == (3.0 + 2 * 2.5, 20.0 + 2 * 8.0)
    # server b only, 1 or 2 of them: price 5 .. 10, time 4 .. 8
    box = {"server": np.array([1]), "servers": np.array([0, 1])}
    assert box_bounds(term, SMALL, box) == (5.0 + 2 * 4.0, 10.0 + 2 * 8.0)
    # one design: its value
    box = {"server": np.array([0]), "servers": np.array([2]), "nic": np.array([1])}
    assert box_bounds(term, SMALL, box) == (12.0 + 5.0, 12.0 + 5.0)


def test_a_relation_tightens_a_bound_through_what_is_known() -> None:
    """With the NIC known, a relation of NIC and number of servers leaves one number for 400g and two for 200g."""
    offered = Relation("offered", {"nic": np.array([0, 0, 1]), "servers": np.array([1, 2, 0])})
    term = Monomial("time", 1.0, (TIME,))
    columns = {"nic": np.array([0, 1])}
    assert evaluate(term, columns, Reducer(SMALL, ["nic"])).tolist() == [3.0, 2.5]
    assert evaluate(term, columns, Reducer(SMALL, ["nic"], [offered])).tolist() == [3.0, 7.0]
    assert evaluate(term, columns, Reducer(SMALL, ["nic"], [offered], greatest=True)).tolist() == [5.0, 7.0]


def test_a_relation_brings_decisions_that_the_table_does_not_have() -> None:
    """The price of the cheapest number of servers that each NIC is offered with: the NIC comes in as a key."""
    offered = Relation("offered", {"nic": np.array([0, 0, 1]), "servers": np.array([1, 2, 0])})
    term = Monomial("price", 1.0, (PRICE,))
    columns = {"server": np.array([0, 0, 1, 1]), "nic": np.array([0, 1, 0, 1])}
    found = evaluate(term, columns, Reducer(SMALL, ["server", "nic"], [offered]))
    assert found.tolist() == [6.0, 3.0, 10.0, 5.0]


def test_a_choice_that_no_tuple_goes_with_is_bounded_by_zero() -> None:
    only_200g = Relation("offered", {"nic": np.array([0]), "servers": np.array([1])})
    found = evaluate(Monomial("time", 1.0, (TIME,)), {"nic": np.array([0, 1])}, Reducer(SMALL, ["nic"], [only_200g]))
    assert found.tolist() == [5.0, 0.0]


def test_a_table_of_known_decisions_is_left_as_it_is() -> None:
    reducer = Reducer(SMALL, ["server", "servers"], [Relation.product("all", SMALL, ("servers", "nic"))])
    assert reducer(PRICE) is PRICE
    reduced = reducer(TIME)
    assert (reduced.name, reduced.scope, reduced.values.tolist()) == ("time", ("servers",), [7.0, 4.0, 2.5])


# -- reduced tables are kept


@given(st.data())
def test_a_reducer_that_was_used_before_gives_the_same_bounds(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    tables = data.draw(st.lists(naive.tables(space), min_size=1, max_size=3))
    relations = data.draw(st.lists(naive.relations(space, least=1), max_size=2))
    known = [space.names[0]]
    greatest = data.draw(st.booleans())
    columns = {known[0]: np.arange(space.size(known[0]))}
    used = Reducer(space, known, relations, greatest)
    for _ in range(3):
        term = data.draw(naive.terms(tables))
        fresh = Reducer(space, known, relations, greatest)
        np.testing.assert_array_equal(evaluate(term, columns, used), evaluate(term, columns, fresh))


def test_a_table_is_reduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[str] = []
    reduce: Callable[[Reducer, Table], Table] = Reducer._reduce
    monkeypatch.setattr(Reducer, "_reduce", lambda self, table: reduced.append(table.name) or reduce(self, table))
    reducer = Reducer(SMALL, ["server"])
    term = Scale("s", Monomial("price", 1.0, (PRICE,)), Monomial("time", 1.0, (TIME,)))
    for _ in range(3):
        assert evaluate(term, {"server": np.array([0, 1])}, reducer).tolist() == [3.0 * 2.5, 5.0 * 2.5]
    assert sorted(reduced) == ["price", "time"]
    assert reducer(TIME) is reducer(TIME)


def test_a_table_that_is_gone_leaves_no_value_to_its_successor() -> None:
    """Python gives the address of a dead object to the next one; a cache by address must keep its objects alive."""
    reducer = Reducer(SMALL, [])
    for number in range(100):
        table = Table("t", ("nic",), np.array([float(number), 1000.0]))
        assert float(reducer(table).values) == number
        del table
