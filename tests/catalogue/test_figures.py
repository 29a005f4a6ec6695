"""Every figure of the catalogue: source, date, unit, and whether the records are whole and plausible."""

from __future__ import annotations

import pytest

from codesign import catalogue
from codesign.catalogue import Figure

FIGURES = [
    pytest.param(section, name, path, figure, id=f"{section}.{name}.{path}")
    for section, name, path, figure in catalogue.load().figures()
]
WITHOUT_UNIT = {  # fields whose value is a count, a share, a name or a truth value
    "gpus": {"efficiency"},
    "servers": {"gpu", "gpus", "nics", "rails"},
    "switches": {"protocol", "ports", "in_network_reduction"},
}
FIELDS = {  # of the typed objects; optional ones in the second set
    "gpus": (
        {
            "peak_flops",
            "memory_bytes",
            "memory_bandwidth_bytes_per_s",
            "domain_bandwidth_bytes_per_s",
            "domain_latency_s",
            "efficiency",
        },
        {"tdp_w", "in_switch_efficiency"},
    ),
    "servers": (
        {
            "gpu",
            "gpus",
            "nics",
            "nic_bandwidth_bytes_per_s",
            "rails",
            "power_w",
            "storage_bandwidth_bytes_per_s",
            "host_copy_bandwidth_bytes_per_s",
        },
        {"price_usd"},
    ),
    "nics": ({"bandwidth_bytes_per_s", "price_usd", "power_w"}, set()),
    "switches": ({"protocol", "ports", "price_usd", "power_w", "latency_s", "in_network_reduction"}, set()),
    "links": ({"bandwidth_bytes_per_s", "price_usd", "power_w"}, set()),
    "storage": ({"capacity_bytes", "read_bytes_per_s", "write_bytes_per_s", "price_usd", "power_w"}, set()),
}
UNIT_OF_SUFFIX = {
    "_bytes_per_s": {"GB/s", "TB/s", "Gb/s"},
    "_bytes": {"B", "GB", "TB", "PB"},
    "_usd": {"USD"},
    "_w": {"W", "kW"},
    "_s": {"s", "ms", "us", "ns", "year"},
    "_usd_per_joule": {"USD/kWh"},
    "_flops": {"TFLOP/s"},
}
BYTES_OF_A_PARAMETER = {"weight_bytes", "gradient_bytes", "optimizer_bytes", "reduced_gradient_bytes"}


@pytest.mark.parametrize(("section", "name", "path", "figure"), FIGURES)
def test_figure_has_source_date_and_fitting_unit(section: str, name: str, path: str, figure: Figure) -> None:
    source = catalogue.load().source(figure.source)
    assert source.seen_at
    assert source.kind
    assert figure.date[:2] in {"19", "20"}
    if source.kind == "recalled":
        assert figure.recalled, "what was not seen says so"
    if source.kind in {"derived", "definition"}:
        assert figure.note, "what was computed says how"
    field = path.partition(".")[2] if path.startswith("efficiency.") else path.partition(".")[0]
    suffix = next((s for s in sorted(UNIT_OF_SUFFIX, key=len, reverse=True) if field.endswith(s)), None)
    if suffix and field not in BYTES_OF_A_PARAMETER:
        assert figure.unit in UNIT_OF_SUFFIX[suffix]
    if figure.unit is not None:
        assert isinstance(figure.si, float)
        assert figure.si > 0 or section in ("assumptions", "software")


@pytest.mark.parametrize("section", sorted(FIELDS))
def test_records_have_the_fields_of_the_typed_object_and_no_other(section: str) -> None:
    needed, optional = FIELDS[section]
    loaded = catalogue.load()
    for name in loaded.names(section):
        fields = set(loaded.values(section, name)) - {"name"}
        assert needed <= fields <= needed | optional, name


def test_every_source_is_used() -> None:
    loaded = catalogue.load()
    used = {figure.source for *_, figure in loaded.figures()}
    assert {source.key for source in loaded.sources()} == used


@pytest.mark.parametrize("name", catalogue.load().names("gpus"))
def test_gpu_is_plausible(name: str) -> None:
    gpu = catalogue.load().values("gpus", name)
    fit = gpu["efficiency"]
    for share in ("matmul_ceiling", "attention_ceiling", "memory_ceiling"):
        assert 0 < fit[share] <= 1
    if "fp8" in gpu["peak_flops"]:  # dense against dense
        assert gpu["peak_flops"]["fp8"] / gpu["peak_flops"]["bf16"] == pytest.approx(2, rel=0.01)
    assert gpu["domain_bandwidth_bytes_per_s"] < gpu["memory_bandwidth_bytes_per_s"]


@pytest.mark.parametrize("name", catalogue.load().names("servers"))
def test_server_is_plausible(name: str) -> None:
    loaded = catalogue.load()
    server = loaded.values("servers", name)
    gpu = loaded.values("gpus", server["gpu"])
    assert server["nics"] % server["rails"] == 0
    assert server["gpus"] * gpu["tdp_w"] < server["power_w"] < 2.5 * server["gpus"] * gpu["tdp_w"]
    assert server["nic_bandwidth_bytes_per_s"] < gpu["domain_bandwidth_bytes_per_s"]


@pytest.mark.parametrize("name", catalogue.load().names("switches"))
def test_split_ports_keep_the_capacity_of_a_switch(name: str) -> None:
    ports = catalogue.load().values("switches", name)["ports"]
    assert len({count * int(speed.removesuffix("Gb/s")) for speed, count in ports.items()}) == 1


def test_links_and_cards_of_each_speed_of_a_server_are_for_sale() -> None:
    loaded = catalogue.load()
    for section in ("links", "nics"):
        speeds = {loaded.values(section, name)["bandwidth_bytes_per_s"] for name in loaded.names(section)}
        for name in loaded.names("servers"):
            assert loaded.values("servers", name)["nic_bandwidth_bytes_per_s"] in speeds


def test_what_is_only_remembered_can_be_listed() -> None:
    remembered = {
        (section, path.partition(".")[0]) for section, _, path, figure in catalogue.load().figures() if figure.recalled
    }
    assert ("servers", "rails") in remembered
    named = {name for section, name, _, figure in catalogue.load().figures() if section == "models" and figure.recalled}
    assert "deepseek-v3" not in named
    assert not {name for name in named if name.startswith("llama")}
