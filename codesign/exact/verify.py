"""Solution file -> differences: all that can be computed again is, from the file alone. Floor 4; no solver.

The instance in the file is read anew and the design in it judged anew; the document that they should give is then
compared with the file, value by value, and the tables beside it row by row. What only a solve can find (the bound, the
counts of the search, the conflict of an infeasible instance) is held to the rules that it must obey, and to the digest
over the whole document.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from codesign.design import TEXT_DECISIONS, Design
from codesign.design.certificate import Certificate
from codesign.design.evaluation import Evaluation
from codesign.design.solution import (
    SOLUTION_FILE,
    Solution,
    document_digest,
    parse_document,
    read_text,
)
from codesign.design.tables import (
    BILL_COLUMNS,
    BILL_FILE,
    RANK_MAP_COLUMNS,
    RANK_MAP_FILE,
    Row,
    bill_rows,
    rank_map_rows,
)
from codesign.errors import CodesignError, StaleSolutionError
from codesign.exact.evaluate import Judge

TOLERANCE = 1e-9
"""Relative distance at which two recomputed figures are one. The sums and exponentials behind a figure differ in the
last digits between processors and versions of numpy, by some 1e-15 each; 1e-9 leaves room for a million of them, and is
far below any figure that a purchase depends on. The digest holds the file itself to every digit."""

PROOF_TOLERANCE = 1e-5
"""Relative distance by which one solver's own bound may pass the design's value: the rounding of its rows."""

MOST_LISTED = 20
"""Differences that are listed for one table of thousands of rows; the rest are counted."""

TAKEN = ("objective.bound", "proof", "conflict", "notes")
"""Parts of a document that only a solve can find; they are held to their rules and to the digest."""

FAULTS = (
    CodesignError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
    AssertionError,
)
"""What a file that is not of the form, or whose figures are absurd, may raise on the way."""


@dataclass(frozen=True)
class Difference:
    """One place where a file does not say what a fresh computation says."""

    path: str
    in_file: Any
    recomputed: Any

    def __str__(self) -> str:
        return f"{self.path}: in the file {_said(self.in_file)}, recomputed {_said(self.recomputed)}"


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes
    ----------
    name : of the file.
    compared : values compared.
    differences : all of them; empty for a file that says what a fresh computation says.
    taken : parts that only a solve can find: their rules and the digest were checked, they were not computed again.
    tables : files beside the solution that were compared too.
    """

    name: str
    compared: int
    differences: tuple[Difference, ...]
    taken: tuple[str, ...] = TAKEN
    tables: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema": 1,
            "verified": self.verified,
            "file": self.name,
            "compared": self.compared,
            "differences": [
                {"path": one.path, "in_file": one.in_file, "recomputed": one.recomputed} for one in self.differences
            ],
            "not_recomputed": list(self.taken),
            "tables": list(self.tables),
            "tolerance": TOLERANCE,
        }


def verify(solution: Solution | Mapping[str, Any] | Path | str) -> Verification:
    """Compute a solution again and list what differs.

    Parameters
    ----------
    solution : a solution, its document, a solution file, or the folder of `--out` that holds one; the rank map and the
        bill of materials beside a file are compared as well, if they are there.

    Raises
    ------
    StaleSolutionError
        If there is no such file, or it cannot be read. Anything wrong *in* a file is a difference.
    """
    if isinstance(solution, Solution):
        return _verified("solution", solution.to_document(), None)
    if isinstance(solution, Mapping):
        return _verified("document", solution, None)
    file, content = read_text(Path(solution))
    try:
        document = parse_document(content, str(file))
    except StaleSolutionError as problem:
        return Verification(str(file), 0, (Difference("", str(problem), "a solution document of schema 1"),))
    return _verified(str(file), document, file)


def _verified(name: str, document: Mapping[str, Any], file: Path | None) -> Verification:
    found = list(_digest(document))
    compared, tables = 1, []
    try:
        written = Solution.from_document(document)
    except FAULTS as problem:
        found.append(Difference("", _problem(problem), "a document of the form that codesign writes"))
        return Verification(name, compared, tuple(found))
    try:
        with np.errstate(all="ignore"):
            fresh = _recomputed(written)
    except FAULTS as problem:
        found.append(Difference("design", _problem(problem), "a design that can be judged"))
        return Verification(name, compared, tuple(found))
    fresh_document = fresh.to_document()
    del fresh_document["digest"]
    for path, here, there in _pairs({k: v for k, v in document.items() if k != "digest"}, fresh_document, ""):
        compared += 1
        if not _same(here, there):
            found.append(Difference(path, here, there))
    try:
        found += _rules(written)
    except FAULTS as problem:
        found.append(Difference("", _problem(problem), "figures that can be calculated with"))
    if file is not None and fresh.design is not None and fresh.evaluation is not None and fresh.evaluation.workloads:
        for table, columns, rows in _tables(fresh.design, fresh.evaluation):
            beside = file.parent / table
            if file.name == SOLUTION_FILE and beside.exists():
                tables.append(table)
                cells, differences = _compared(beside, columns, rows)
                compared += cells
                found += differences
    return Verification(name, compared, tuple(found), tables=tuple(tables))


def _digest(document: Mapping[str, Any]) -> Iterator[Difference]:
    try:
        digest = document_digest(document)
    except (TypeError, ValueError, RecursionError) as problem:
        yield Difference("digest", _problem(problem), "a digest")
        return
    if document.get("digest") != digest:
        yield Difference("digest", document.get("digest"), digest)


def _recomputed(written: Solution) -> Solution:
    """The solution as its instance and its design give it; certificate, conflict and notes as written."""
    judge = Judge(written.instance)
    if written.design is None:
        return replace(written, evaluation=None, objective_unit=_unit(written))
    _whole(written.design)
    evaluation = judge.evaluate(written.design)
    certificate = written.certificate
    if certificate is not None and isfinite(evaluation.objective) and evaluation.objective != 0:
        value = evaluation.objective
        certificate = replace(certificate, value=value, gap=abs(value - certificate.bound) / abs(value))
    return replace(written, evaluation=evaluation, certificate=certificate, objective_unit=_unit(written))


UNITS = {
    "step_time": "s",
    "time_to_train": "s",
    "tokens_per_s": "tokens/s",
    "total_cost": "USD",
    "tokens_per_usd": "tokens/USD",
}
GREATER_IS_BETTER = frozenset({"tokens_per_s", "tokens_per_usd"})


def _unit(written: Solution) -> str:
    return UNITS[written.instance.objective]


def _whole(design: Design) -> None:
    """Counts and degrees are whole numbers; what is not would be cut short on its way into arrays."""
    values = [
        *(
            (f"plan.{name}", getattr(design.plan, name))
            for name in design.plan.__dataclass_fields__
            if name not in TEXT_DECISIONS
        ),
        *((f"placement.{name}", each) for name in ("tp", "cp", "pp", "dp") for each in design.placement.layout(name)),
        ("purchase.servers", design.purchase.servers),
        ("purchase.network.tiers", design.purchase.network.tiers),
        ("purchase.network.oversubscription", design.purchase.network.oversubscription),
        ("purchase.storage.units", design.purchase.storage.units),
    ]
    for path, value in values:
        if type(value) is not int or value < 0:
            raise ValueError(f"{path}: {value!r} is not a whole number")


# ---------------------------------------------------------------------------------------------- rules of a document


def _rules(written: Solution) -> Iterator[Difference]:
    """What must hold inside any solution, of the file's own figures."""
    design, evaluation, certificate = written.design, written.evaluation, written.certificate
    if written.status not in ("optimal", "feasible", "infeasible", "unknown"):
        yield Difference("status", written.status, "one of optimal, feasible, infeasible, unknown")
    answered = written.status in ("optimal", "feasible")
    for name, part in (("design", design), ("evaluation", evaluation), ("proof", certificate)):
        if answered and part is None:
            yield Difference(name, None, f"a {name}, since the status is {written.status}")
        if not answered and part is not None:
            yield Difference(name, "there is one", f"none, since the status is {written.status}")
    if written.status == "infeasible" and written.conflict is None:
        yield Difference("conflict", None, "the limits that exclude each other, since the status is infeasible")
    if written.status != "infeasible" and written.conflict is not None:
        yield Difference("conflict", "there is one", f"none, since the status is {written.status}")
    if evaluation is not None:
        yield from _sums(evaluation)
    if certificate is not None:
        yield from _certificate(written, certificate)


def _sums(evaluation: Evaluation) -> Iterator[Difference]:
    if evaluation.violations:
        yield Difference("evaluation.violations", list(evaluation.violations), "a design that breaks nothing")
    for index, line in enumerate(evaluation.bill_of_materials):
        if not _same(line.total_usd, line.count * line.unit_usd):
            path = f"design.purchase.bill_of_materials[{index}].total_usd"
            yield Difference(path, line.total_usd, line.count * line.unit_usd)
    total = fsum(line.total_usd for line in evaluation.bill_of_materials)
    if not _same(evaluation.capex_usd, total):
        yield Difference("evaluation.capex_usd", evaluation.capex_usd, f"the sum of the bill, {total!r}")
    for name, figures in evaluation.workloads.items():
        parts = fsum(figures.breakdown_s.values())
        if not _same(figures.step_time_s, parts):
            path = f"evaluation.workloads.{name}.step_time_s"
            yield Difference(path, figures.step_time_s, f"the sum of the breakdown, {parts!r}")
        memory = figures.memory
        parts = fsum(memory.parts_bytes.values())
        if not _same(memory.worst_rank_bytes, parts):
            path = f"evaluation.workloads.{name}.memory.worst_rank_bytes"
            yield Difference(path, memory.worst_rank_bytes, f"the sum of its parts, {parts!r}")


def _certificate(written: Solution, certificate: Certificate) -> Iterator[Difference]:
    value, bound = certificate.value, certificate.bound
    gap = abs(value - bound) / abs(value) if value else float("nan")
    if not _same(certificate.gap, gap):
        yield Difference("objective.gap", certificate.gap, f"|value - bound| / |value| = {gap!r}")
    sign = -1.0 if written.instance.objective in GREATER_IS_BETTER else 1.0
    if sign * (bound - value) > TOLERANCE * abs(value):
        yield Difference("objective.bound", bound, f"no better than the value of the design, {value!r}")
    known = {proof.solver for proof in certificate.proofs}
    for solver in certificate.proven_by:
        if solver not in known:
            yield Difference("proof.proven_by", solver, f"one of the solvers with a proof: {', '.join(sorted(known))}")
    yield from _search(certificate)
    for index, proof in enumerate(certificate.proofs):
        if proof.bound is not None and sign * (proof.bound - value) > PROOF_TOLERANCE * abs(value):
            path = f"proof.proofs[{index}].bound"
            yield Difference(path, proof.bound, f"no better than the value of the design, {value!r}")
        if proof.solver in certificate.proven_by and (
            proof.bound is None or sign * (bound - proof.bound) > TOLERANCE * abs(value)
        ):
            path = f"proof.proofs[{index}].bound"
            yield Difference(path, proof.bound, f"at least as good as the bound that it is said to prove, {bound!r}")
    if written.status == "optimal" and not certificate.proven_by:
        yield Difference("proof.proven_by", [], "at least one solver, since the status is optimal")


def _search(certificate: Certificate) -> Iterator[Difference]:
    """What is told of the search is told in whole numbers, in seconds and in words."""
    written: dict[str, Any] = certificate.to_document()
    for name in ("iterations", "cuts", "designs_evaluated", "space_designs", "excluded", "seed", "threads"):
        value = written[name]
        if type(value) is not int or (value < 0 and name != "seed"):
            yield Difference(f"proof.{name}", value, "a whole number")
    proofs = [(f"proofs[{index}]", proof) for index, proof in enumerate(written["proofs"])]
    seconds = [(name, written[name]) for name in ("wall_s", "first_design_s")]
    for name, value in [*seconds, *((f"{name}.wall_s", proof["wall_s"]) for name, proof in proofs)]:
        if not _is_number(value) or not 0 <= value < float("inf"):
            yield Difference(f"proof.{name}", value, "seconds")
    for name, proof in proofs:
        if not _is_number(proof["bound"]):
            yield Difference(f"proof.{name}.bound", proof["bound"], "a number")
        if not isinstance(proof["status"], str):
            yield Difference(f"proof.{name}.status", proof["status"], "a word")
    if type(written["deterministic"]) is not bool:
        yield Difference("proof.deterministic", written["deterministic"], "true or false")


# ------------------------------------------------------------------------------------------------------- comparing

_MISSING = "nothing"


def _pairs(here: Any, there: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Every leaf of two documents, side by side."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in [*here, *(name for name in there if name not in here)]:
            inner = f"{path}.{name}" if path else str(name)
            if name not in here or name not in there:
                yield inner, here.get(name, _MISSING), there.get(name, _MISSING)
            else:
                yield from _pairs(here[name], there[name], inner)
    elif _is_list(here) and _is_list(there):
        if len(here) != len(there):
            yield path, f"{len(here)} entries", f"{len(there)} entries"
        for index, (one, other) in enumerate(zip(here, there, strict=False)):
            yield from _pairs(one, other, f"{path}[{index}]")
    else:
        yield path, here, there


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(here: Any, there: Any) -> bool:
    if _is_number(here) and _is_number(there):
        try:
            return bool(here == there or abs(here - there) <= TOLERANCE * max(abs(here), abs(there)))
        except OverflowError:  # a whole number beyond all doubles against one
            return False
    return type(here) is type(there) and bool(here == there)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _problem(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}".strip().removesuffix(":")


# ---------------------------------------------------------------------------------------------------------- tables


def _tables(design: Design, evaluation: Evaluation) -> Iterator[tuple[str, tuple[str, ...], list[Row]]]:
    yield RANK_MAP_FILE, RANK_MAP_COLUMNS, rank_map_rows(design)
    yield BILL_FILE, BILL_COLUMNS, bill_rows(evaluation.bill_of_materials)


def _compared(file: Path, columns: tuple[str, ...], rows: Sequence[Row]) -> tuple[int, list[Difference]]:
    """Cells of a table compared with the file, and where they differ."""
    try:
        text = file.read_bytes().decode("utf-8")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        return 0, [Difference(file.name, _problem(problem), "a table")]
    if not lines or tuple(lines[0]) != columns:
        return 0, [Difference(f"{file.name}:1", ",".join(lines[0]) if lines else "", ",".join(columns))]
    found: list[Difference] = []
    if len(lines) - 1 != len(rows):
        found.append(Difference(file.name, f"{len(lines) - 1} rows", f"{len(rows)} rows"))
    different = 0
    for number, (line, row) in enumerate(zip(lines[1:], rows, strict=False), start=2):
        if len(line) == len(row) and all(_cell(cell, value) for cell, value in zip(line, row, strict=True)):
            continue
        different += 1
        if different <= MOST_LISTED:
            found.append(Difference(f"{file.name}:{number}", ",".join(line), ",".join(map(str, row))))
    if different > MOST_LISTED:
        found.append(Difference(file.name, f"{different - MOST_LISTED} more rows that differ", "none"))
    return len(rows) * len(columns), found


def _cell(cell: str, value: str | int | float) -> bool:
    if isinstance(value, str):
        return cell == value
    if isinstance(value, int):
        return cell == str(value)
    try:
        return _same(float(cell), value)
    except ValueError:
        return False
