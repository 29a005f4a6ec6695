"""Measured runs as they stand in a CSV file. Floor 5. In: a file. Out: `Run`s, one a row.

The columns are `id source model params_b layers hidden ffn_hidden heads kv_heads vocab seq experts topk gpu
gpus_per_node gpus precision tp pp vp cp ep dp zero mbs gbs recompute sp metric value unit notes`. A blank is "not
stated". Nothing is filled in here: `recipes` does that, by rules that it states.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from codesign.errors import Fault, SpecError

REQUIRED = ("id", "source", "model", "gpu", "metric", "value", "unit")
"""Columns without which nothing can be predicted; others may be missing, which is the same as blank."""

CONFIGURATION = (
    "model", "params_b", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "seq", "experts", "topk",
    "gpu", "gpus_per_node", "gpus", "precision", "tp", "pp", "vp", "cp", "ep", "dp", "zero", "mbs", "gbs", "recompute",
    "sp",
)  # fmt: skip
"""Columns that say what was run; rows that agree in these are measurements of one configuration."""

_NUMBER = re.compile(r"\s*([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([kK]?)")


@dataclass(frozen=True)
class Run:
    """One measured value with what is stated of the run."""

    file: str
    line: int
    columns: tuple[tuple[str, str], ...]
    value: float

    def text(self, column: str) -> str:
        """The text of a column, "" where it is blank or missing."""
        return dict(self.columns).get(column, "")

    def number(self, column: str) -> float | None:
        """The number that a column starts with (`250k` is 250,000); None where there is none."""
        found = _NUMBER.match(self.text(column))
        if found is None:
            return None
        return float(found.group(1).replace(",", "")) * (1000.0 if found.group(2) else 1.0)

    def count(self, column: str) -> int | None:
        """`number`, where it is whole and positive."""
        number = self.number(column)
        return int(number) if number is not None and number == int(number) and number > 0 else None

    @property
    def id(self) -> str:
        return self.text("id")

    @property
    def metric(self) -> str:
        return self.text("metric")

    @property
    def configuration(self) -> tuple[str, ...]:
        """What was run, as text: equal for all measurements of one configuration."""
        return (self.file, *(self.text(column) for column in CONFIGURATION))


def read_runs(path: str | Path) -> tuple[Run, ...]:
    """Read a CSV file of measured runs.

    Raises
    ------
    SpecError
        If the file cannot be read, lacks a column of `REQUIRED`, or has a value that is no number, each with its line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise SpecError((_fault(path, None, "", f"a CSV file in UTF-8 ({problem})"),)) from None
    reader = csv.DictReader(text.splitlines())
    missing = [column for column in REQUIRED if column not in (reader.fieldnames or [])]
    if missing:
        found = ", ".join(reader.fieldnames or []) or "no header"
        raise SpecError((_fault(path, 1, found, f"a header with the columns {', '.join(missing)}"),))
    runs, faults = [], []
    try:
        for row in reader:
            columns = tuple((key, (value or "").strip()) for key, value in row.items() if isinstance(key, str))
            stated = dict(columns)["value"]
            try:
                value = float(stated.replace(",", ""))
            except ValueError:
                faults.append(_fault(path, reader.line_num, repr(stated), "a number in the column 'value'"))
                continue
            runs.append(Run(path.name, reader.line_num, columns, value))
    except csv.Error as problem:
        faults.append(_fault(path, reader.line_num, str(problem), "a row of a CSV file"))
    if faults:
        raise SpecError(tuple(faults))
    return tuple(runs)


def _fault(path: Path, line: int | None, found: str, expected: str) -> Fault:
    return Fault("", found, expected, file=str(path), line=line)
