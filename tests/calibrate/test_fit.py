"""Fits: a constant that was put in comes out, the halves do not overlap, the catalogue's files take the values."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import run

from codesign import catalogue
from codesign.calibrate import predict, programme, recipes, record
from codesign.calibrate.fit import RANGES, Parameter, Sample, chosen_for_fitting, digest, fit, identity, settings_of
from codesign.calibrate.programme import STAGES, Fitted
from codesign.calibrate.runs import read_runs

CEILING = Parameter("gpus", "h100-sxm-80", "matmul_ceiling")
OVERLAP = Parameter("software", "megatron-core", "overlap_tensor_parallel")


def settings() -> list[recipes.Setting]:
    return [
        recipes.setting(run(tp=tp, pp=pp, vp=1, dp=64 // tp // pp, gbs=gbs))
        for tp in (1, 2, 4, 8)
        for pp in (2, 4)
        for gbs in (128, 256)
    ]


def test_constants_that_were_put_in_come_out() -> None:
    found = []
    for setting in settings():
        gpu = setting.server.gpu
        other = gpu.model_copy(update={"efficiency": gpu.efficiency.model_copy(update={"matmul_ceiling": 0.61})})
        constants = recipes.assumptions(**setting.software.assumptions() | {"overlap_tensor_parallel": 0.3})
        found.append(Sample(setting, predict.seconds(setting, other, constants), "made.csv"))
    result = fit(found, [CEILING, OVERLAP])
    assert result.values[CEILING] == pytest.approx(0.61, rel=0.01)
    assert result.values[OVERLAP] == pytest.approx(0.3, abs=0.03)
    assert result.error_after["made.csv"] < 0.005 < result.error_before["made.csv"]


def test_half_of_the_configurations_are_fitted_and_the_same_ones_each_time() -> None:
    every = settings()
    one = chosen_for_fitting(every)
    assert one == chosen_for_fitting(every[::-1])
    assert len(one) == len({identity(setting) for setting in every}) // 2
    assert one != chosen_for_fitting(every, seed="another")


def test_the_list_of_what_was_fitted_is_that_of_the_data() -> None:
    """A hash that no configuration has any more would count what was fitted as held out."""
    data = Path(__file__).parents[2] / "benchmarks" / "data"
    runs = [one for file in sorted(data.glob("*.csv")) for one in read_runs(file)]
    chosen = {digest(name) for name in chosen_for_fitting(settings_of(runs))}
    fitted = set((data / "fitted.txt").read_text(encoding="utf-8").split())
    assert len(fitted) > 700
    assert fitted <= chosen


def test_names_do_not_matter_to_what_was_run() -> None:
    one, other = (recipes.setting(run(model=name)) for name in ("LLAMA3-70B", "Llama 3 70b (again)"))
    assert identity(one) == identity(other)


def test_every_constant_of_the_programme_is_a_field_with_a_range() -> None:
    known = catalogue.load()
    for stage in STAGES:
        for parameter in stage.parameters:
            assert parameter.field in RANGES
            low, expected, high = RANGES[parameter.field]
            assert low <= expected <= high
            assert set(parameter.records) <= set(known.names(parameter.section))


def test_values_go_into_the_files_of_the_catalogue() -> None:
    folder = Path(catalogue.__file__).parent
    result = fit([Sample(settings()[0], 10.0, "made.csv")], [CEILING, OVERLAP])
    found = [Fitted(STAGES[2], result)]
    gpus, software, assumptions = (
        record.updated((folder / f"{section}.yaml").read_text(encoding="utf-8"), section, found)
        for section in ("gpus", "software", "assumptions")
    )
    import yaml

    ceiling = yaml.safe_load(gpus)["h100-sxm-80"]["efficiency"]["matmul_ceiling"]
    assert ceiling["value"] == pytest.approx(result.values[CEILING], rel=1e-3)
    assert "made 1" in ceiling["note"] or "made" in ceiling["note"]
    overlap = yaml.safe_load(software)["megatron-core"]["overlap_tensor_parallel"]["value"]
    assert overlap == yaml.safe_load(assumptions)["default"]["overlap_tensor_parallel"]["value"]
    # nothing else moved
    before = yaml.safe_load((folder / "gpus.yaml").read_text(encoding="utf-8"))
    after = yaml.safe_load(gpus)
    before["h100-sxm-80"]["efficiency"].pop("matmul_ceiling")
    after["h100-sxm-80"]["efficiency"].pop("matmul_ceiling")
    assert before == after


def test_a_stage_without_enough_runs_is_left_out() -> None:
    assert programme.fit_all([run()]) == ()
