"""What is filled in where a row is blank, and what a row is refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from measured import ROW, run

from codesign.calibrate import recipes
from codesign.calibrate.architectures import Unpredictable
from codesign.calibrate.runs import Run


def test_a_row_that_states_all() -> None:
    found = recipes.setting(run())
    (plan,) = found.plans
    assert (plan.tp, plan.pp, plan.virtual_stages, plan.dp, plan.micro_batch) == (4, 4, 5, 4, 1)
    assert found.workload.model.name == "llama-3-70b"
    assert found.software.name == "megatron-core"
    assert found.domain == 8
    assert found.nic_share_bytes_per_s == 50e9


@pytest.mark.parametrize(
    ("text", "precision"),
    [("BF16", "bf16"), ("mixed (FP16)", "bf16"), ("FP8-CS", "fp8"), ("FP8-MX", "mxfp8"), ("MXFP8", "mxfp8")],
)
def test_formats(text: str, precision: str) -> None:
    assert recipes.setting(run(precision=text)).workload.precision == precision


def test_a_format_that_the_gpu_lacks() -> None:
    with pytest.raises(Unpredictable, match="nvfp4 peak"):
        recipes.setting(run(precision="NVFP4"))


@pytest.mark.parametrize(
    ("changes", "software"),
    [
        ({"gpu": "A100-80GB"}, "megatron-2021"),
        ({"gpu": "A100-80GB", "zero": "3"}, "deepspeed-zero3"),
        ({"gpu": "A100-80GB", "zero": "3 (FSDP FULL_SHARD)"}, "fsdp-ampere"),
        ({"zero": "3 (FSDP)"}, "fsdp-hopper"),
        ({"model": "Maxtext Llama3 70b"}, "maxtext"),
        ({"source": "Megatron-Bridge (25.11 NeMo container)", "gpu": "GB200"}, "megatron-bridge-2025"),
        ({"source": "Megatron-Bridge (26.04.01 NeMo container)", "gpu": "GB200"}, "megatron-bridge"),
    ],
)
def test_generations_of_software(changes: dict[str, str], software: str) -> None:
    assert recipes.setting(run(**{"pp": 1, "vp": "", "dp": "", **changes})).software.name == software


def test_stated_sizes_go_before_a_family() -> None:
    found = recipes.setting(
        run(model="BLOOM sizing GPT 181B", params_b=181, layers=72, hidden=14336, heads=64, vocab="250k", pp=4, vp="")
    )
    model = found.workload.model
    assert (model.layers, model.hidden, model.vocabulary) == (72, 14336, 250_000)
    assert (model.ffn_hidden, model.gated) == (4 * 14336, False)


def test_a_proxy_with_fewer_layers_is_the_family_otherwise() -> None:
    model = recipes.setting(run(layers=20)).workload.model
    assert (model.layers, model.hidden) == (20, 8192)


def test_layers_and_heads_from_the_number_of_parameters() -> None:
    """12 x 14400^2 is 2.488e9 a layer; 200e9 less 3.6e9 of vocabulary are 78.9 layers: 80 on 10 stages."""
    found = recipes.setting(
        run(
            model="GPT 200B",
            params_b=200,
            hidden=14400,
            vocab="250k",
            gpus=320,
            tp=8,
            pp=10,
            vp="",
            dp=4,
            mbs=2,
            gbs=2048,
        )
    )
    assert found.workload.model.layers == 80
    assert found.workload.model.heads == 96  # 150 wide: the multiple of 16 that comes nearest to 128 each
    assert any("80 layers" in each for each in found.filled)


def test_what_is_blank_is_tried() -> None:
    found = recipes.setting(run(tp="", pp="", vp="", dp=""))
    assert len(found.plans) > 20
    assert all(plan.world == 64 for plan in found.plans)
    assert any("tuned where blank: tp, pp, vp" in each for each in found.filled)


def test_a_stated_number_of_model_parallel_ranks() -> None:
    found = recipes.setting(run(tp="", pp="", vp="", dp="", notes="model-parallel size 16"))
    assert {plan.tp * plan.pp for plan in found.plans} == {16}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "Nemotron-H 56b"}, "not modelled"),
        ({"model": "Somebody's 9B", "params_b": 9}, "architecture is not stated"),
        ({"gpu": "TPU v5p"}, "not in the catalogue"),
        ({"seq": ""}, "sequence length"),
        ({"gpus": ""}, "number of GPUs"),
        ({"gbs": "", "mbs": ""}, "global batch"),
        ({"dp": 2}, "do not make up"),
        ({"notes": "INCONSISTENT: printed twice"}, "contradict"),
        ({"vp": 13}, "no plan with the stated degrees"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unpredictable, match=reason):
        recipes.setting(run(**changes))


def test_nothing_measured_is_read() -> None:
    """The setting of a row is the same whatever was measured."""
    columns = tuple({**ROW, "value": "1"}.items())
    one, other = (recipes._setting(Run("x.csv", 2, columns, value)) for value in (1.0, 1e6))
    assert (one.workload, one.plans, one.server) == (other.workload, other.plans, other.server)


def test_no_row_is_looked_up() -> None:
    """No identity of a published row, and no measured value of one, stands in the package."""
    import csv

    root = Path(__file__).parents[2]
    source = "".join(path.read_text(encoding="utf-8") for path in (root / "codesign" / "calibrate").glob("*.py"))
    for path in (root / "benchmarks" / "data").glob("*.csv"):
        with path.open(encoding="utf-8") as file:
            assert not any(row["id"] in source for row in csv.DictReader(file)), path.name
