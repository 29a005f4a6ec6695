"""The solver against exhaustive search by the same exact model: recorded optima, and random instances judged here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optimality
import pytest
import yaml

from codesign import Instance, Limits, SpecError, read, solve
from codesign.cost.assemble import CostModel
from codesign.solve.exhaustive import TooMany, designs_of, enumerate_all, number_of_designs

SMALL = Path(__file__).parents[2] / "instances" / "small"
OPTIMA = yaml.safe_load((SMALL / "optima.yaml").read_text(encoding="utf-8"))
FILES = sorted(file for file in SMALL.glob("*.yaml") if file.name != "optima.yaml")


def test_every_small_instance_has_a_recorded_optimum() -> None:
    assert {file.stem for file in FILES} == set(OPTIMA)
    assert len(FILES) >= 12


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_recorded_optimum_is_found_and_proven_twice(file: Path) -> None:
    solution = solve(read(file), Limits(gap=0.0))
    assert solution.status == "optimal"
    assert solution.certificate is not None
    # The optima were recorded on another processor perhaps: sums of doubles in another order.
    assert solution.certificate.value == pytest.approx(OPTIMA[file.stem]["optimum"], rel=1e-12)
    assert solution.certificate.proven_by == ("cp-sat", "highs")
    assert solution.certificate.gap <= 1e-5


@pytest.mark.parametrize("name", ["8b-half-empty-domain", "gpt3-scaled-interleaved", "7b-torchtitan"])
def test_exhaustive_search_gives_what_was_recorded(name: str) -> None:
    found = enumerate_all(read(SMALL / f"{name}.yaml"))
    assert found.evaluation is not None
    assert found.evaluation.objective == pytest.approx(OPTIMA[name]["optimum"], rel=1e-12)
    assert (found.designs, found.feasible) == (OPTIMA[name]["designs"], OPTIMA[name]["feasible"])


@pytest.mark.parametrize("seed", range(8))
def test_random_instances(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    while True:
        try:
            instance = Instance.from_document(optimality.random_document(generator))
            if 20 <= number_of_designs(CostModel(instance)) <= 800:
                break
        except SpecError:
            continue
    _, wrong, _, _ = optimality.compared(instance)
    assert not wrong


def test_the_count_of_designs_is_their_number() -> None:
    for file in FILES:
        model = CostModel(read(file))
        listed = list(designs_of(model))
        assert number_of_designs(model) == sum(len(one) for one in listed)


def test_no_design_is_listed_twice() -> None:
    model = CostModel(read(SMALL / "8b-buy-network.yaml"))
    seen = set()
    for relation in designs_of(model):
        for row in range(len(relation)):
            design = model.decode(relation.columns, row)
            assert design not in seen
            seen.add(design)


def test_a_large_space_is_refused_by_exhaustive_search() -> None:
    with pytest.raises(TooMany):
        enumerate_all(read(SMALL / "8b-on-one-server.yaml"), most=10)
