"""Relations against nested loops: join, projection, semijoin, product."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.expr import Decision, Relation, Space, join, project
from codesign.expr.relation import semijoin

SPACE = Space([Decision("a", (1, 2, 4)), Decision("b", ("x", "y")), Decision("c", (10, 20, 30, 40))])


def relation(name: str, **columns: list[int]) -> Relation:
    return Relation(name, {d: np.array(codes, dtype=np.intp) for d, codes in columns.items()})


def tuples(naive: type, found: Relation) -> list[tuple[tuple[str, int], ...]]:
    """Tuples as a sorted list, so that order does not matter and repetition does."""
    return sorted(tuple(sorted(row.items())) for row in naive.rows(found))


@given(st.data())
def test_join_is_the_nested_loop(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    left, right = data.draw(naive.relations(space)), data.draw(naive.relations(space))
    # A tuple that is listed twice stays twice.
    if len(left) and data.draw(st.booleans()):
        left = left.where(np.append(np.arange(len(left)), 0))
    if len(right) and data.draw(st.booleans()):
        right = right.where(np.append(np.arange(len(right)), 0))
    shared = set(left.scope) & set(right.scope)
    expected = [
        tuple(sorted({**one, **other}.items()))
        for one in naive.rows(left)
        for other in naive.rows(right)
        if all(one[d] == other[d] for d in shared)
    ]
    found = join(left, right, space)
    assert set(found.scope) == set(left.scope) | set(right.scope)
    assert tuples(naive, found) == sorted(expected)


@given(st.data())
def test_projection_has_each_tuple_once(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    whole = data.draw(naive.relations(space))
    scope = data.draw(st.permutations(whole.scope))[: data.draw(st.integers(1, len(whole.scope)))]
    found = project(whole, space, scope)
    assert found.scope == tuple(scope)
    expected = {tuple(sorted((d, row[d]) for d in scope)) for row in naive.rows(whole)}
    assert tuples(naive, found) == sorted(expected)


@given(st.data())
def test_semijoin_keeps_what_has_a_partner(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    left, right = data.draw(naive.relations(space)), data.draw(naive.relations(space))
    shared = [d for d in left.scope if d in right.scope]
    expected = [
        one for one in naive.rows(left) if any(all(one[d] == other[d] for d in shared) for other in naive.rows(right))
    ]
    assert naive.rows(semijoin(left, right, space)) == expected


@given(st.data())
def test_semijoin_is_the_join_seen_from_the_left(naive: type, data: st.DataObject) -> None:
    space = data.draw(naive.spaces())
    left, right = data.draw(naive.relations(space)), data.draw(naive.relations(space))
    through_join = project(join(left, right, space), space, left.scope)
    assert tuples(naive, semijoin(left, right, space)) == tuples(naive, through_join)


def test_join_by_hand() -> None:
    left = relation("plans", a=[0, 1, 1], b=[0, 0, 1])
    right = relation("nets", b=[1, 0, 1], c=[3, 2, 0])
    found = join(left, right, SPACE)
    assert found.name == "plans+nets"
    assert found.scope == ("a", "b", "c")
    rows = sorted(zip(*(found.columns[d].tolist() for d in "abc"), strict=True))
    assert rows == [(0, 0, 2), (1, 0, 2), (1, 1, 0), (1, 1, 3)]
    assert join(left, right, SPACE, "both").name == "both"


def test_join_without_shared_decisions_pairs_all() -> None:
    found = join(relation("l", a=[2, 0]), relation("r", c=[1, 3, 2]), SPACE)
    rows = sorted(zip(found.columns["a"].tolist(), found.columns["c"].tolist(), strict=True))
    assert rows == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2), (2, 3)]


def test_join_needs_agreement_on_every_shared_decision() -> None:
    left, right = relation("l", a=[0, 1], b=[1, 0]), relation("r", b=[1, 0], a=[1, 1])
    found = join(left, right, SPACE)
    assert {d: column.tolist() for d, column in found.columns.items()} == {"a": [1], "b": [0]}


def test_semijoin_without_shared_decisions_asks_only_whether_the_other_is_empty() -> None:
    left = relation("l", a=[2, 0])
    assert len(semijoin(left, relation("r", c=[1]), SPACE)) == 2
    empty = semijoin(left, relation("r", c=[]), SPACE)
    assert len(empty) == 0
    assert empty.scope == ("a",)


def test_product_is_every_combination_once() -> None:
    found = Relation.product("all", SPACE, ("c", "a"))
    assert found.scope == ("c", "a")
    rows = list(zip(found.columns["c"].tolist(), found.columns["a"].tolist(), strict=True))
    assert rows == [(c, a) for c in range(4) for a in range(3)]


def test_where_takes_masks_and_positions() -> None:
    whole = relation("r", a=[0, 1, 2], b=[0, 1, 0])
    masked = whole.where(np.array([True, False, True]))
    assert masked.columns["a"].tolist() == [0, 2]
    picked = whole.where(np.array([2, 2, 0]))
    assert picked.columns["a"].tolist() == [2, 2, 0]
    assert picked.columns["b"].tolist() == [0, 0, 0]
    assert (picked.name, picked.scope, len(picked)) == ("r", ("a", "b"), 3)


def test_values_are_the_numbers_behind_the_codes() -> None:
    whole = relation("r", a=[2, 0], c=[1, 3])
    assert whole.values(SPACE, "a").tolist() == [4.0, 1.0]
    assert whole.values(SPACE, "c").tolist() == [20.0, 40.0]
    with pytest.raises(ValueError, match="could not convert"):
        relation("r", b=[0]).values(SPACE, "b")
