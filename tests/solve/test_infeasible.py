"""Infeasible instances: the named limits are a smallest conflict, and the moves that are told are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from codesign import Limits, read, solve
from codesign.solve.conflict import members
from codesign.spec.instance import Instance

FILES = sorted((Path(__file__).parents[2] / "instances" / "infeasible").glob("*.yaml"))
EXPECTED = {
    "70b-on-one-server": {"inventory"},
    "gpus-against-deadline": {"limits.deadline", "limits.gpus"},
    "money-against-deadline": {"limits.capex", "limits.deadline"},
    "pin-against-memory": {"plan.pp", "plan.zero"},
    "power-for-one-server": {"limits.power"},
    "storage-too-small": {"storage"},
}
QUICK = Limits(gap=0.5)  # whether there is a design is all that is asked


def without(instance: Instance, names: set[str]) -> Instance:
    for member in members(instance):
        if member.name in names:
            instance = member.dropped(instance)
    return instance


def test_every_infeasible_instance_has_an_expectation() -> None:
    assert {file.stem for file in FILES} == set(EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_conflict_is_a_smallest_one(file: Path) -> None:
    instance = read(file)
    solution = solve(instance)
    assert solution.status == "infeasible"
    assert solution.design is None
    assert solution.conflict is not None
    found = set(solution.conflict.limits)
    assert found == EXPECTED[file.stem]
    assert set(solution.conflict.moves) == found
    everything = {member.name for member in members(instance)}
    # Alone they exclude everything; without any one of them something is left.
    assert solve(without(instance, everything - found), QUICK).status == "infeasible"
    for name in found:
        assert solve(without(instance, (everything - found) | {name}), QUICK).design is not None


def test_the_move_of_a_limit_is_enough_and_little_less_is_not() -> None:
    file = next(file for file in FILES if file.stem == "money-against-deadline")
    # from $3M to $8.256M, from 90 days to 188.065 days
    solution = solve(read(file))
    assert solution.conflict is not None
    moves = {name: move.split(" to ")[1] for name, move in solution.conflict.moves.items()}
    money = float(moves["limits.capex"].strip("$M"))
    days = float(moves["limits.deadline"].removesuffix(" days"))
    assert solve(read(file, [f"limits.capex=${money}M"]), QUICK).design is not None
    assert solve(read(file, [f"limits.capex=${money * 0.998:.4f}M"]), QUICK).status == "infeasible"
    assert solve(read(file, [f"limits.deadline={days}d"]), QUICK).design is not None
    assert solve(read(file, [f"limits.deadline={days * 0.998:.4f}d"]), QUICK).status == "infeasible"


def test_a_conflict_is_told_even_when_the_time_is_short() -> None:
    file = next(file for file in FILES if file.stem == "money-against-deadline")
    solution = solve(read(file), Limits(time_s=0.3))
    assert solution.status in ("infeasible", "unknown")
    if solution.status == "infeasible":
        assert solution.conflict is not None
        assert {"limits.capex", "limits.deadline"} <= set(solution.conflict.limits)
