"""Rows -> MathOpt -> HiGHS: the second opinion, by a solver that shares no code with CP-SAT. Floor 4.

HiGHS works in doubles, so each row is divided by its largest coefficient, and each value is in units of its own range.
Its bound is trusted to `TOLERANCE` only, so the objective's upper bound should be of the size of its least value.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import numpy as np
from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from codesign.errors import SolverError
from codesign.relax.outcome import Outcome
from codesign.relax.rows import Rows
from codesign.relax.watch import watched

NAME = "highs"

TOLERANCE = 2e-6
"""Slack taken off a bound, in units of the objective's range: twice the absolute gap of 10^-6 that HiGHS stops at."""


def solve(
    rows: Rows,
    *,
    time_s: float,
    relative_gap: float = 1e-6,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Minimise the rows' objective variable with HiGHS, on one thread.

    Raises
    ------
    SolverError
        If HiGHS refuses the model.
    """
    started = time.perf_counter()
    model = mathopt.Model(name="master")
    units, variables = [], []
    for index, variable in enumerate(rows.variables):
        if variable.binary:
            units.append(1.0)
            variables.append(model.add_binary_variable(name=f"z{index}"))
        else:
            unit = max(abs(variable.lower), abs(variable.upper)) or 1.0
            units.append(unit)
            variables.append(model.add_variable(lb=variable.lower / unit, ub=variable.upper / unit, name=f"x{index}"))
    unit_of = np.array(units)
    for number, row in enumerate(rows.rows):
        if not len(row.columns):
            continue
        coefficients = row.coefficients * unit_of[row.columns]
        largest = float(np.abs(coefficients).max())
        if largest == 0.0:
            continue
        model.add_linear_constraint(
            lb=row.lower / largest,
            ub=row.upper / largest,
            expr=mathopt.LinearSum(
                float(c) / largest * variables[i] for c, i in zip(coefficients, row.columns, strict=True)
            ),
            name=f"r{number}",
        )
    model.minimize(variables[rows.objective])
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=max(time_s, 1e-3)),
        relative_gap_tolerance=relative_gap,
        random_seed=seed,
        presolve=mathopt.Emphasis.OFF,  # HiGHS 1.16 corrupts memory in presolve on some masters; a test holds one
    )
    interrupter = SolveInterrupter()
    try:
        with watched(stop, interrupter.interrupt):
            result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters, interrupter=interrupter)
    except AttributeError as refused:
        # MathOpt 9.15 hides every refusal behind an AttributeError; the true reason is in the context.
        raise SolverError(f"HiGHS refuses the model: {getattr(refused.__context__, 'message', refused)}") from refused
    wall_s = time.perf_counter() - started
    reason = result.termination.reason
    if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
        return Outcome(NAME, "infeasible", float("inf"), float("inf"), None, (), wall_s)
    bounds = result.termination.objective_bounds
    bound = rows.variables[rows.objective].lower
    if np.isfinite(bounds.dual_bound):
        bound = max(bound, (bounds.dual_bound - TOLERANCE) * units[rows.objective])
    if not result.has_primal_feasible_solution():
        return Outcome(NAME, "unknown", bound, float("inf"), None, (), wall_s)
    values = result.variable_values()
    # HiGHS keeps bounds to its tolerance only.
    lowest, highest = np.array([(v.lower, v.upper) for v in rows.variables]).T
    chosen = np.clip(np.array([values[v] for v in variables]) * unit_of, lowest, highest)
    status = "optimal" if reason == mathopt.TerminationReason.OPTIMAL else "feasible"
    return Outcome(NAME, status, bound, float(chosen[rows.objective]), chosen, (), wall_s)
