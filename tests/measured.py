"""A measured run as a row of a file, for tests of predictions: `run()`, or with some columns changed."""

from __future__ import annotations

from typing import Any

from codesign.calibrate.runs import Run

ROW = {
    "id": "x-1", "source": "a page", "model": "LLAMA3-70B", "params_b": "70", "seq": "8192", "gpu": "H100",
    "gpus": "64",
    "precision": "BF16", "tp": "4", "pp": "4", "vp": "5", "cp": "1", "dp": "4", "mbs": "1", "gbs": "128",
    "metric": "iteration_time", "unit": "s",
}  # fmt: skip


def run(**changes: Any) -> Run:
    columns = {**ROW, **{name: str(value) for name, value in changes.items()}}
    return Run("x.csv", 2, tuple(columns.items()), 1.0)
