"""The loader: SI values, frozen figures, names that are missing, faults of the files."""

from __future__ import annotations

import re
import time
from importlib import resources
from typing import Any

import pytest
import yaml

from codesign import catalogue
from codesign.catalogue import CatalogueError, Figure, UnknownNameError

SOURCES: dict[str, Any] = {"page": {"seen_at": "somewhere", "kind": "vendor document", "date": "2026-03"}}
FILES = (*catalogue.SECTIONS, "sources")


def build(figure: object, field: str = "memory_bytes") -> catalogue.Catalogue:
    return catalogue.build({"gpus": {"some-gpu": {field: figure}}}, SOURCES)


def test_values_are_si_under_the_names_of_the_typed_objects() -> None:
    gpu = catalogue.load().values("gpus", "h100-sxm-80")
    assert gpu["name"] == "h100-sxm-80"
    assert gpu["peak_flops"] == {"bf16": 989e12, "fp8": 1979e12}
    assert gpu["memory_bytes"] == 85.5e9  # 80 GB of 2^30, less what the part keeps
    assert gpu["memory_bandwidth_bytes_per_s"] == 3.35e12
    assert gpu["domain_bandwidth_bytes_per_s"] == 370.8e9  # 18 links of 20.6 GB/s
    assert gpu["domain_latency_s"] == 1.9e-6


def test_values_nest_efficiency_and_ports_and_name_the_gpu_of_a_server() -> None:
    loaded = catalogue.load()
    assert set(loaded.values("gpus", "a100-sxm-80")["efficiency"]) >= {
        "matmul_ceiling",
        "attention_ceiling",
        "memory_ceiling",
        "tokens_half",
        "width_half",
        "launch_s",
    }
    assert loaded.values("switches", "quantum2-qm9700")["ports"]["400Gb/s"] == 64
    server = loaded.values("servers", "hgx-h100")
    assert server["gpu"] == "h100-sxm-80"
    assert server["nic_bandwidth_bytes_per_s"] == 50e9  # 400 Gb/s over 8
    assert server["price_usd"] == 310_000
    assert server["power_w"] == 10_200


def test_prices_and_energy_by_hand() -> None:
    loaded = catalogue.load()
    assert loaded.values("links", "link-400g")["price_usd"] == 1280
    assert loaded.values("nics", "cx7-400g")["price_usd"] == pytest.approx(50 * 31.6)
    assumptions = loaded.values("assumptions", "default")
    assert "name" not in assumptions
    assert assumptions["electricity_usd_per_joule"] == pytest.approx(0.08 / 3.6e6)
    assert assumptions["depreciation_s"] == 5 * 365.25 * 86400
    # 16,384 GPUs for 54 days, 419 interruptions
    assert assumptions["failure_gpu_hours"] == pytest.approx(16384 * 54 * 24 / 419, rel=1e-4)


def test_record_keeps_unit_source_and_range() -> None:
    price = catalogue.load().record("servers", "hgx-h100")["price_usd"]
    assert price == Figure(
        310_000, "USD", "gsheet", "2024-08", low=250_000, high=400_000, note=price.note, recalled=False
    )
    assert price.si_range == (250_000.0, 400_000.0)
    power = catalogue.load().record("servers", "gb200-nvl72")["power_w"]
    assert (power.si, power.si_range) == (132_000.0, (120_000.0, 150_000.0))


def test_a_figure_without_a_date_has_that_of_its_source() -> None:
    assert (
        build({"value": 80, "unit": "GB", "source": "page"}).record("gpus", "some-gpu")["memory_bytes"].date
        == "2026-03"
    )


def test_load_is_cached_and_quick() -> None:
    catalogue.load.cache_clear()
    start = time.perf_counter()
    loaded = catalogue.load()
    assert time.perf_counter() - start < 1.0  # about 0.05 s on an idle core
    assert catalogue.load() is loaded


def test_a_record_taken_out_is_a_copy() -> None:
    loaded = catalogue.load()
    loaded.record("gpus", "h100-sxm-80").clear()
    loaded.values("gpus", "h100-sxm-80")["peak_flops"].clear()
    assert loaded.values("gpus", "h100-sxm-80")["peak_flops"]["bf16"] == 989e12


def test_a_missing_name_says_what_looks_like_it() -> None:
    with pytest.raises(
        UnknownNameError, match="no record of gpus named 'h100-sxm'; did you mean h100-sxm-80"
    ) as caught:
        catalogue.load().values("gpus", "h100-sxm")
    assert caught.value.close[0] == "h100-sxm-80"
    with pytest.raises(UnknownNameError, match="no section named 'gpu'"):
        catalogue.load().names("gpu")
    with pytest.raises(UnknownNameError, match="no source named 'nowhere'"):
        catalogue.load().source("nowhere")


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"value": 80, "unit": "GB"}, "expected value and source"),
        ({"value": 80, "unit": "GB", "source": "nowhere"}, "no source named 'nowhere'"),
        ({"value": 80, "unit": "GiB", "source": "page"}, "expected a number in one of"),
        ({"value": "1e9", "unit": "B", "source": "page"}, "expected a number in one of"),
        ({"value": True, "unit": "B", "source": "page"}, "expected a number in one of"),
        ({"value": None, "source": "page"}, "expected a number, a name or a truth value"),
        ({"value": 80, "unit": "GB", "source": "page", "range": [90, 100]}, "expected a range"),
        ({"value": 80, "unit": "GB", "source": "page", "range": [100, 60]}, "expected a range"),
        ({"value": 80, "unit": "GB", "source": "page", "date": "March"}, "expected a date"),
        ({"value": 80, "unit": "GB", "source": "page", "note": 3}, "note as text"),
        ({"value": 80, "unit": "GB", "source": "page", "recalled": "yes"}, "recalled as true or false"),
        ({"value": 80, "unit": "GB", "source": "page", "remark": "?"}, "no key but"),
        ([80], "expected value and source"),
        ({"a": {"b": {"value": 1, "source": "page"}}}, "expected value and source"),
    ],
)
def test_a_fault_of_a_file_is_named_with_its_place(figure: object, says: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(says)) as caught:
        build(figure)
    assert str(caught.value).startswith("gpus.some-gpu.memory_bytes")


def test_a_range_of_the_wrong_length_is_a_fault_of_the_file() -> None:
    with pytest.raises(CatalogueError, match="expected a range"):
        build({"value": 80, "unit": "GB", "source": "page", "range": [60, 80, 100]})


def test_a_server_must_name_a_gpu_of_the_catalogue() -> None:
    server = {"gpu": {"value": "other-gpu", "source": "page"}}
    gpus = {"some-gpu": {"memory_bytes": {"value": 80, "unit": "GB", "source": "page"}}}
    with pytest.raises(CatalogueError, match=r"servers\.rack\.gpu"):
        catalogue.build({"gpus": gpus, "servers": {"rack": server}}, SOURCES)


class _NoDuplicates(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; this one objects."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"duplicate key at {node.start_mark}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("section", FILES)
def test_no_key_stands_twice(section: str) -> None:
    text = resources.files("codesign.catalogue").joinpath(f"{section}.yaml").read_text(encoding="utf-8")
    assert yaml.load(text, Loader=_NoDuplicates)


def test_duplicates_would_be_caught() -> None:
    with pytest.raises(AssertionError, match="duplicate key"):
        yaml.load("a: {b: 1, b: 2}", Loader=_NoDuplicates)
