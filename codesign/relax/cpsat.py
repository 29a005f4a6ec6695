"""Rows -> CP-SAT -> an outcome. Floor 4.

CP-SAT 9.15 with default parameters certifies wrong optima on models of this kind (google/or-tools#5293): its presolve
removes constraints that it wrongly takes for included in others. `presolve_inclusion_work_limit = 0` switches that step
off, in every solve. Even so its word alone is not a proof: `codesign.solve` has the bound proven again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from codesign.errors import SolverError
from codesign.relax import scaling
from codesign.relax.outcome import Outcome
from codesign.relax.rows import Rows
from codesign.relax.watch import watched

NAME = "cp-sat"


def parameters(time_s: float, relative_gap: float, seed: int, threads: int) -> cp_model.CpSolver:
    """A solver with the parameters that every solve must have."""
    solver = cp_model.CpSolver()
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.max_time_in_seconds = max(time_s, 1e-3)
    solver.parameters.relative_gap_limit = relative_gap
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = threads
    solver.parameters.catch_sigint_signal = False  # signals belong to the host; its handler aborts the process
    return solver


class _Watch(cp_model.CpSolverSolutionCallback):
    """Keeps the assignments met on the way."""

    def __init__(self, variables: list[cp_model.IntVar]) -> None:
        super().__init__()
        self._variables = variables
        self.found: list[list[int]] = []

    def on_solution_callback(self) -> None:
        self.found.append([self.value(v) for v in self._variables])


def solve(
    rows: Rows,
    *,
    time_s: float,
    relative_gap: float = 1e-6,
    seed: int = 0,
    threads: int = 1,
    hint: npt.NDArray[np.float64] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Minimise the rows' objective variable.

    Parameters
    ----------
    hint : an assignment to start at; NaN where nothing is said of a variable.

    Raises
    ------
    SolverError
        If CP-SAT refuses the model; the message is its own.
    OverflowError
        If a row has an infinite coefficient.
    """
    started = time.perf_counter()
    domains = [scaling.domain(variable) for variable in rows.variables]
    binary = np.array([variable.binary for variable in rows.variables])
    model = cp_model.CpModel()
    variables = [model.new_int_var(d.lower, d.upper, v.name) for d, v in zip(domains, rows.variables, strict=True)]
    for row in rows.rows:
        for one in scaling.integer_rows(row, domains, binary):
            expression = cp_model.LinearExpr.weighted_sum([variables[i] for i in one.columns], one.coefficients)
            low = one.lower if one.lower is not None else -(2**62)
            high = one.upper if one.upper is not None else 2**62
            model.add_linear_constraint(expression, low, high)
    objective = variables[rows.objective]
    model.minimize(objective)
    if hint is not None:
        for variable, d, value in zip(variables, domains, hint, strict=True):
            if np.isnan(value):
                continue
            model.add_hint(variable, min(max(int(np.ceil(value / d.unit - 1e-9)), d.lower), d.upper))
    if problem := model.validate():
        raise SolverError(f"CP-SAT refuses the model: {problem}")
    solver = parameters(time_s, relative_gap, seed, threads)
    watch = _Watch(variables)
    with watched(stop, solver.stop_search):
        status = solver.solve(model, watch)
    wall_s = time.perf_counter() - started
    unit = domains[rows.objective].unit
    units = np.array([d.unit for d in domains])
    solutions = tuple(np.array(found, dtype=np.float64) * units for found in watch.found)
    if status == cp_model.INFEASIBLE:
        return Outcome(NAME, "infeasible", float("inf"), float("inf"), None, (), wall_s)
    if status == cp_model.MODEL_INVALID:
        raise SolverError("CP-SAT calls the model invalid without saying why")
    # A design takes the ceiling of its objective, so it lies above the integer bound less one unit.
    bound = max(solver.best_objective_bound - 1.0, domains[rows.objective].lower) * unit
    if status == cp_model.UNKNOWN:
        return Outcome(NAME, "unknown", bound, float("inf"), None, (), wall_s)
    chosen = np.array([solver.value(v) for v in variables], dtype=np.float64) * units
    name = "optimal" if status == cp_model.OPTIMAL else "feasible"
    return Outcome(NAME, name, bound, float(chosen[rows.objective]), chosen, solutions, wall_s)
