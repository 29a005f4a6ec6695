"""A model on which CP-SAT certifies a wrong optimum with default parameters, and the right one with ours.

tests/data/README.md says where it is from. If the first test fails on a new release of ortools, read what changed there
before the parameters of `codesign.relax.cpsat` are touched.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import ortools
import pytest
from ortools.sat.python import cp_model

from codesign.relax import cpsat

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "cpsat-9.15-wrong-optimum.pb.txt.gz"
RIGHT, WRONG = 211_939, 313_058
KNOWN_WRONG = ("9.15.6755",)
"""Releases that were seen to certify the wrong value."""


def model() -> cp_model.CpModel:
    found = cp_model.CpModel()
    found.Proto().parse_text_format(gzip.decompress(FILE.read_bytes()).decode("ascii"))
    return found


def test_default_parameters_certify_a_wrong_optimum() -> None:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 120.0
    assert solver.solve(model()) == cp_model.OPTIMAL
    expected = WRONG if ortools.__version__ in KNOWN_WRONG else RIGHT
    assert solver.objective_value == expected, f"ortools {ortools.__version__} behaves in another way than was seen"


def test_our_parameters_give_the_right_optimum() -> None:
    solver = cpsat.parameters(time_s=120.0, relative_gap=0.0, seed=0, threads=1)
    assert solver.solve(model()) == cp_model.OPTIMAL
    assert solver.objective_value == RIGHT
    assert solver.best_objective_bound == RIGHT


def test_the_right_optimum_is_a_solution_that_the_wrong_one_excludes() -> None:
    """What makes the first value wrong: a feasible assignment of less, checked without any presolve."""
    solver = cpsat.parameters(time_s=120.0, relative_gap=0.0, seed=0, threads=1)
    wanted = model()
    assert solver.solve(wanted) == cp_model.OPTIMAL
    checked = cp_model.CpSolver()
    checked.parameters.cp_model_presolve = False
    checked.parameters.num_workers = 1
    fixed = model()
    for index in range(len(fixed.Proto().variables)):
        variable = fixed.get_int_var_from_proto_index(index)
        fixed.add(variable == solver.value(wanted.get_int_var_from_proto_index(index)))
    assert checked.solve(fixed) == cp_model.OPTIMAL
    assert checked.objective_value == RIGHT < WRONG


@pytest.mark.parametrize("word", ["CpSolver("])
def test_no_solver_is_made_without_these_parameters(word: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "codesign").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(re.escape(word), line)
    ]
    assert len(places) == 1, places
    assert places[0].startswith("codesign/relax/cpsat.py")
