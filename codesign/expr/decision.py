"""Decisions and the space that they span. Floor 1. In: names and value lists. Out: small integer codes.

A design is a row of codes, one for each decision of the space; the code is the position of the chosen value in
the decision's list. Everything in bulk works on columns of codes (`numpy.intp`), never on the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.intp]
Columns = Mapping[str, Codes]


@dataclass(frozen=True)
class Decision:
    """A choice of one value from a finite list; `values` are hashable and all different."""

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"decision {self.name!r} has no value to choose from")
        if len(self._index) != len(self.values):
            raise ValueError(f"decision {self.name!r} lists a value twice: {self.values!r}")

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.values)}

    def code(self, value: Any) -> int:
        """Position of `value` in the list; KeyError if it is not a value of this decision."""
        return self._index[value]

    def numbers(self) -> npt.NDArray[np.float64]:
        """The values as an array of floats, shape (len,); for decisions over numbers only."""
        return np.asarray(self.values, dtype=np.float64)


class Space:
    """An ordered set of decisions. Not every combination need be a legal design: relations say which are."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self.decisions: tuple[Decision, ...] = tuple(decisions)
        self._by_name = {decision.name: decision for decision in self.decisions}
        if len(self._by_name) != len(self.decisions):
            raise ValueError("two decisions share a name")

    def __getitem__(self, name: str) -> Decision:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def size(self, name: str) -> int:
        """Number of values of one decision."""
        return len(self._by_name[name])

    def sizes(self, scope: Sequence[str]) -> tuple[int, ...]:
        """Numbers of values of several decisions, in the order of `scope`."""
        return tuple(len(self._by_name[name]) for name in scope)

    def combinations(self) -> int:
        """Number of combinations, legal or not."""
        return prod(len(decision) for decision in self.decisions)

    def encode(self, values: Mapping[str, Any]) -> dict[str, Codes]:
        """Columns of length 1 for one assignment of values to all decisions; KeyError if a value is not listed."""
        return {d.name: np.array([d.code(values[d.name])], dtype=np.intp) for d in self.decisions}

    def decode(self, columns: Columns, row: int) -> dict[str, Any]:
        """Values chosen in one row of the columns."""
        return {name: self._by_name[name].values[int(column[row])] for name, column in columns.items()}


def flat_index(scope: Sequence[str], sizes: Sequence[int], columns: Columns) -> Codes:
    """Row-major flat index of each row into a table over `scope`; shape (n,)."""
    index = columns[scope[0]]
    for name, size in zip(scope[1:], sizes[1:], strict=True):
        index = index * size + columns[name]
    return index
