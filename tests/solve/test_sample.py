"""Random designs: all legal, spread evenly over a space that can be listed, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codesign import read
from codesign.cost.assemble import CostModel
from codesign.design import Design
from codesign.solve.exhaustive import designs_of
from codesign.solve.sample import random_designs

FOLDER = Path(__file__).parents[2] / "instances"


def drawn(model: CostModel, count: int, seed: int) -> list[Design]:
    rows = random_designs(model, count, seed)
    return [model.decode(rows.columns, row) for row in range(count)]


def test_every_design_is_legal(instances: Any, instance_name: str) -> None:
    """The exact model, which knows no relation, finds nothing that cannot be played."""
    judge = instances.judge(instance_name)
    for design in drawn(instances.model(instance_name), 100, seed=5):
        assert judge.evaluate(design).workloads, judge.evaluate(design).violations


@pytest.mark.parametrize("file", ["gpt3-scaled-interleaved", "8b-buy-network", "8b-half-empty-domain"])
def test_all_of_a_small_space_and_nothing_else(file: str) -> None:
    model = CostModel(read(FOLDER / "small" / f"{file}.yaml"))
    listed = [model.decode(relation.columns, row) for relation in designs_of(model) for row in range(len(relation))]
    placements = Counter((design.plan, design.purchase) for design in listed)
    count = 3 * len(listed)
    mean = count / len(placements)
    found = Counter(drawn(model, count, seed=1))
    assert set(found) <= set(listed)
    # A plan is drawn `mean` times, each of its P placements mean / P times: a Poisson number, nought with exp(-mean/P).
    missing = sum(np.exp(-mean / placements[design.plan, design.purchase]) for design in listed)
    assert abs(len(listed) - len(found) - missing) < 6 * missing**0.5
    plans = Counter((design.plan, design.purchase) for design in found.elements())
    # six standard deviations and a little for the skew of small means
    assert all(abs(times - mean) < 6 * mean**0.5 + 6 for times in plans.values())


def test_the_seed_decides(instances: Any) -> None:
    model = instances.model("leaves-8b")
    first, again, other = (random_designs(model, 5000, seed) for seed in (3, 3, 4))
    assert first.scope == model.space.names
    assert all(np.array_equal(first.columns[name], again.columns[name]) for name in first.scope)
    assert any(not np.array_equal(first.columns[name], other.columns[name]) for name in first.scope)


def test_none_is_none(instances: Any) -> None:
    rows = random_designs(instances.model("bought-8b"), 0, 1)
    assert (len(rows), rows.scope) == (0, instances.model("bought-8b").space.names)


def test_an_empty_space_is_said() -> None:
    with pytest.raises(ValueError, match="storage-too-small: there is no legal design"):
        random_designs(CostModel(read(FOLDER / "infeasible" / "storage-too-small.yaml")), 1, 1)
