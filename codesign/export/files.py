"""Solution -> folder: `solution.json`, `rank_map.csv`, `bill_of_materials.csv`. Floor 6.

Each file is whole or not at all: it is written under a temporary name in the same folder, forced to the disk, and then
takes the place of the old one in a single step. A reader sees the old file or the new one, also after a power failure.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from codesign.design.solution import SOLUTION_FILE, Solution
from codesign.design.tables import (
    BILL_COLUMNS,
    BILL_FILE,
    RANK_MAP_COLUMNS,
    RANK_MAP_FILE,
    Row,
    bill_rows,
    rank_map_rows,
)

TABLES = (RANK_MAP_FILE, BILL_FILE)


def prepare(folder: Path) -> None:
    """Make the folder, and try that files can be made in it: better now than after the solve.

    Raises
    ------
    OSError
        If that is not possible.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write(solution: Solution, folder: Path) -> tuple[Path, ...]:
    """Write the files of a solution and return their paths, `solution.json` last.

    An answer without a design has no tables; those of an earlier answer in the folder are removed, since they would
    be taken for its own.

    Raises
    ------
    OSError
        If a file cannot be written. The file of that name from before is then still whole.
    """
    prepare(folder)
    texts: dict[str, str] = {}
    if solution.design is not None and solution.evaluation is not None:
        texts[RANK_MAP_FILE] = table(RANK_MAP_COLUMNS, rank_map_rows(solution.design))
        texts[BILL_FILE] = table(BILL_COLUMNS, bill_rows(solution.evaluation.bill_of_materials))
    else:
        for name in TABLES:
            (folder / name).unlink(missing_ok=True)
    texts[SOLUTION_FILE] = solution_text(solution)
    return tuple(write_whole(folder / name, text) for name, text in texts.items())


def solution_text(solution: Solution) -> str:
    """The solution file as text. ValueError for a number that JSON does not have."""
    return json.dumps(solution.to_document(), indent=1, allow_nan=False) + "\n"


def table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows as CSV under a line of column names; numbers keep every digit."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def write_whole(file: Path, text: str) -> Path:
    """Write a file in one step: all of it, or what was there before."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the mask of the process
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(file.parent)
    return file


def _sync_folder(folder: Path) -> None:
    """Force the new name to the disk, where the system can do that for folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
