"""The exception tree. Floor 0. What a user can mend is a `SpecError` or `StaleSolutionError`; the rest is ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault of an input, for the person who wrote it.

    Attributes
    ----------
    file, line, column : where it stands; lines and columns count from 1, None for what stands in no file.
    path : the field, as `workloads[0].plan.tp`.
    found, expected, hint : what stands there, what could stand there, and what to do about it (may be empty).
    """

    path: str
    found: str
    expected: str
    hint: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(each) for each in (self.file, self.line, self.column) if each is not None)
        head = ": ".join(each for each in (place, self.path) if each)
        text = f"{head}: found {self.found}, expected {self.expected}"
        return f"{text}\n    {self.hint}" if self.hint else text


class CodesignError(Exception):
    """Base of all errors that codesign raises on purpose."""


class SpecError(CodesignError):
    """An instance (or a design for it) that is wrong; `faults` has every fault that was found."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class StaleSolutionError(CodesignError):
    """A solution file that is missing, unreadable, or of a schema that this version does not know."""


class SolverError(CodesignError):
    """A contradiction between proofs, or a solver that refuses its model: a fault of codesign, never of the user."""
