"""Fabric counts against published tables, sums done by hand, and a network wired link by link."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codesign.cost import fabric

TABLES = {
    table["name"]: table
    for table in yaml.safe_load(
        (Path(__file__).parents[1] / "data" / "reference_architectures.yaml").read_text(encoding="utf-8")
    )["tables"]
}
PRINTED = ("leaf", "spine", "core", "leaf_spine_links", "spine_core_links")
GPUS_PER_SERVER = 8


def rows(*, rail_only: bool) -> list[Any]:
    return [
        pytest.param(table, row, id=f"{name}-{row['gpus']}")
        for name, table in TABLES.items()
        if (table["fabric"] == "rail-only") == rail_only
        for row in table["rows"]
    ]


def one(nodes: int, **parameters: Any) -> dict[str, int]:
    counts = fabric.count(nodes, **parameters)
    return {field.name: int(getattr(counts, field.name)) for field in fields(counts)}


class TestPublishedTables:
    def test_every_table_is_here(self) -> None:
        assert {name: len(table["rows"]) for name, table in TABLES.items()} == {
            "superpod-ndr": 6,
            "superpod-ndr-small": 4,
            "superpod-b300-spectrum-x": 5,
            "superpod-b300-xdr": 5,
            "rail-only-sheet": 6,
        }

    @pytest.mark.parametrize(("table", "row"), rows(rail_only=False))
    def test_rail_optimized_row(self, table: dict[str, Any], row: dict[str, Any]) -> None:
        counts = one(
            row["servers"],
            kind=table["fabric"],
            switch_ports=table["ports"],
            rails=GPUS_PER_SERVER,
            planes=table["planes"],
            extra_endpoints=row["endpoints"] - row["gpus"],
        )
        # Two planes: the document prints a cable of two links, one in each plane.
        links = {name: counts[name] / table["planes"] for name in counts if name.endswith("_links")}
        assert {name: {**counts, **links}[name] for name in PRINTED} == {name: row[name] for name in PRINTED}
        assert links["host_links"] == row["host_links"]
        assert counts["tiers"] == (3 if row["core"] else 2)

    @pytest.mark.parametrize(("table", "row"), rows(rail_only=False))
    def test_fat_tree_of_as_many_ports_has_the_same_switches(self, table: dict[str, Any], row: dict[str, Any]) -> None:
        # Eight ports a server divide every leaf here, so that grouping by rail costs no switch.
        counts = one(
            row["servers"],
            kind="fat-tree",
            switch_ports=table["ports"],
            rails=GPUS_PER_SERVER,
            planes=table["planes"],
            extra_endpoints=row["endpoints"] - row["gpus"],
        )
        assert [counts[tier] for tier in ("leaf", "spine", "core")] == [row[tier] for tier in ("leaf", "spine", "core")]

    @pytest.mark.parametrize(("table", "row"), rows(rail_only=True))
    def test_rail_only_row(self, table: dict[str, Any], row: dict[str, Any]) -> None:
        counts = fabric.count(
            row["gpus"] // table["rails"],
            kind="rail-only",
            switch_ports=table["ports"],
            rails=table["rails"],
        )
        assert counts.switches == row["switches"]


class TestByHand:
    def test_three_tiers_of_64_ports_at_16384(self) -> None:
        # 5N/k = 5 x 16384 / 64 = 1280 switches; 2N = 32768 links between switches.
        counts = fabric.count(16384, kind="fat-tree", switch_ports=64, rails=1)
        assert counts.switches == 1280
        assert counts.switch_links == 32768
        assert (counts.leaf, counts.spine, counts.core) == (512, 512, 256)

    def test_rail_only_at_16384(self) -> None:
        # Each of 8 rails: 2048 ports on 64 leaves (32 down) and 64 x 32 / 64 = 32 spines; 2048 uplinks.
        counts = fabric.count(2048, kind="rail-only", switch_ports=64, rails=8)
        assert (counts.leaf, counts.spine, counts.core) == (8 * 64, 8 * 32, 0)
        assert counts.switch_links == 8 * 2048 == 16384

    def test_three_to_one(self) -> None:
        # d = 64 x 3/4 = 48, u = 16. 96 servers of 8: 768 ports, 2 groups of 48 servers, 16 leaves, 256
        # uplinks, at least 256/64 = 4 spines, and 4 divides 16.
        assert fabric.split_ports(64, 3) == (48, 16)
        counts = one(96, kind="rail-optimized", switch_ports=64, rails=8, oversubscription=3)
        assert counts["leaf"] == 16
        assert counts["leaf_spine_links"] == 256
        assert counts["spine"] == 4
        assert counts["leaf_nodes"] == 48

    def test_split_rounds_toward_less_oversubscription(self) -> None:
        # 64 x 2/3 = 42.67: 42 down and 22 up is 1.91:1; 43 and 21 would be 2.05:1.
        assert fabric.split_ports(64, 2) == (42, 22)
        assert fabric.split_ports(64) == (32, 32)
        assert fabric.split_ports(144, 1) == (72, 72)

    def test_a_leaf_of_a_fat_tree_takes_whole_servers(self) -> None:
        # 42 down ports hold 5 servers of 8, and 2 idle: 42 servers take 9 leaves, though 8 have the ports.
        counts = one(42, kind="fat-tree", switch_ports=64, rails=8, oversubscription=2)
        assert (counts["leaf"], counts["leaf_nodes"]) == (9, 5)

    def test_a_fabric_manager_takes_ports_of_its_own(self) -> None:
        # A switch of 64 ports a rail holds 64 servers, not 64 and a fabric manager; likewise two tiers 2048.
        parameters: dict[str, Any] = {
            "kind": "rail-only",
            "switch_ports": 64,
            "rails": 8,
            "extra_endpoints": 4,
        }
        assert one(63, **parameters)["tiers"] == 1
        assert one(64, **parameters)["tiers"] == 2
        assert one(64, **parameters)["host_links"] == 516
        assert one(2047, **parameters)["tiers"] == 2
        assert one(2048, **parameters)["tiers"] == 3

    def test_spines_divide_the_uplinks(self) -> None:
        # 20 leaves of 64 ports: 640 uplinks need 10 spines; 10 does not divide 32, so 16.
        assert one(20 * 32, kind="fat-tree", switch_ports=64, rails=1)["spine"] == 16
        # 2:1: 22 uplinks, 8 leaves: 176 / 64 = 2.75, so at least 3; divisors of 22 are 1, 2, 11, 22.
        assert one(8 * 42, kind="fat-tree", switch_ports=64, rails=1, oversubscription=2)["spine"] == 11

    def test_a_partly_filled_last_pod(self) -> None:
        # 288 servers of 8 = 9 groups of 32 on 72 leaves. Pods of 4 groups (32 leaves, 32 spines): two full
        # ones, and 8 leaves left: 8 x 32 / 32 = 8 spines. Core: three pods of 32 uplinks a lane on 64 ports
        # need 1.5, so 2 for each of 32 lanes. Spine to core: 72 leaves x 32.
        counts = one(288, kind="rail-optimized", switch_ports=64, rails=8)
        assert (counts["leaf"], counts["spine"], counts["core"]) == (72, 2 * 32 + 8, 64)
        assert counts["leaf_spine_links"] == counts["spine_core_links"] == 2304
        assert (counts["leaf_nodes"], counts["pod_nodes"]) == (32, 128)

    def test_oversubscribed_core(self) -> None:
        # Spine 3:1: 48 down, 16 up. 3072 ports on 96 leaves, pods of 48 leaves: 2 pods of 32 spines; a lane
        # has 2 x 16 = 32 links, so a core switch of 64 ports takes 2 lanes: 16 of them, 2 x 32 x 16 links.
        counts = one(3072, kind="fat-tree", switch_ports=64, rails=1, tiers=3, spine_oversubscription=3)
        assert (counts["leaf"], counts["spine"], counts["core"]) == (96, 64, 16)
        assert counts["leaf_spine_links"] == 3072
        assert counts["spine_core_links"] == 1024
        assert counts["pod_nodes"] == 48 * 32

    @pytest.mark.parametrize(
        ("kind", "switches", "limit"),
        [("fat-tree", 1, 8), ("rail-optimized", 1, 8), ("rail-only", 8, 64)],
    )
    def test_a_single_switch(self, kind: fabric.Kind, switches: int, limit: int) -> None:
        # 64 ports: 8 servers of 8, or, where each rail has its own switch, 64 servers.
        counts = one(limit, kind=kind, switch_ports=64, rails=8)
        assert counts["tiers"] == 1
        assert counts["leaf"] == switches
        assert counts["host_links"] == 8 * limit
        assert counts["leaf_spine_links"] == counts["spine"] == counts["core"] == 0
        assert counts["leaf_nodes"] == counts["pod_nodes"] == counts["limit_nodes"] == limit
        assert one(limit + 1, kind=kind, switch_ports=64, rails=8)["tiers"] == 2

    @pytest.mark.parametrize(
        ("ports", "tiers", "endpoints"),
        [(64, 2, 2048), (128, 2, 8192), (144, 2, 10368), (64, 3, 65536)],
    )
    def test_limits_of_fat_trees(self, ports: int, tiers: int, endpoints: int) -> None:
        # k^2/2 ports over two tiers, k^3/4 over three.
        counts = fabric.count([endpoints, endpoints + 1], kind="fat-tree", switch_ports=ports, rails=1, tiers=tiers)
        assert counts.feasible.tolist() == [True, False]
        assert counts.limit_nodes.tolist() == [endpoints, endpoints]

    def test_rail_only_reaches_further_in_two_tiers(self) -> None:
        # 8 fabrics of 2048 ports: 16384 GPUs, where rail-optimised holds 2048.
        only = one(1, kind="rail-only", switch_ports=64, rails=8, tiers=2)
        optimized = one(1, kind="rail-optimized", switch_ports=64, rails=8, tiers=2)
        assert (only["limit_nodes"], optimized["limit_nodes"]) == (2048, 256)
        assert (only["pod_nodes"], optimized["pod_nodes"]) == (2048, 256)


class TestRacks:
    """72 GPUs with 72 NICs on 4 rails: 18 ports on each."""

    def test_a_unit_of_eight_racks(self) -> None:
        # 144 ports: 72 down hold 4 racks a rail; 8 racks are 2 groups of 4 leaves; 8 x 72 / 144 = 4 spines;
        # 8 x 72 = 576 links.
        counts = one(8, kind="rail-optimized", switch_ports=144, rails=4, ports_per_rail=18)
        assert (counts["leaf"], counts["spine"], counts["leaf_nodes"]) == (8, 4, 4)
        assert counts["host_links"] == counts["leaf_spine_links"] == 576

    def test_a_leaf_that_the_ports_of_a_rack_do_not_fill(self) -> None:
        # 64 ports: 32 down hold one rack's 18; each rack then has 4 leaves to itself. 16 racks: 64 leaves,
        # 64 x 32 / 64 = 32 spines.
        counts = one(16, kind="rail-optimized", switch_ports=64, rails=4, ports_per_rail=18)
        assert (counts["leaf"], counts["spine"], counts["leaf_nodes"]) == (64, 32, 1)

    def test_rail_only(self) -> None:
        # A rail of 8 racks: 144 ports on one switch of 144.
        counts = one(8, kind="rail-only", switch_ports=144, rails=4, ports_per_rail=18)
        assert (counts["leaf"], counts["tiers"], counts["limit_nodes"]) == (4, 1, 8)

    def test_a_rack_larger_than_a_leaf_is_spread_in_a_fat_tree(self) -> None:
        # 72 ports on leaves of 32: 3 racks have 216 ports, 6.75 leaves, so 7; 7 x 32 / 64 = 3.5, so 4 spines.
        counts = one(3, kind="fat-tree", switch_ports=64, rails=4, ports_per_rail=18)
        assert (counts["leaf"], counts["spine"], counts["leaf_nodes"]) == (7, 4, 1)

    def test_a_rail_larger_than_a_leaf_is_refused(self) -> None:
        counts = one(1, kind="rail-optimized", switch_ports=32, rails=4, ports_per_rail=18)
        assert not counts["feasible"]
        assert counts["limit_nodes"] == 0


class TestCalls:
    def test_out_of_reach_is_not_free(self) -> None:
        counts = fabric.count([256, 257], kind="rail-optimized", switch_ports=64, rails=8, tiers=2)
        assert counts.feasible.tolist() == [True, False]
        for name in (*PRINTED, "host_links", "switches", "switch_links"):
            assert getattr(counts, name)[1] == fabric.NO_COUNT, name
        assert counts.switches[0] == 96

    def test_shape_is_kept(self) -> None:
        nodes = np.array([[1, 8, 64], [256, 512, 2048]])
        counts = fabric.count(nodes, kind="rail-optimized", switch_ports=64, rails=8)
        for field in fields(counts):
            assert getattr(counts, field.name).shape == nodes.shape, field.name
        assert counts.tiers.tolist() == [[1, 1, 2], [2, 3, 3]]

    def test_no_servers_at_all_is_an_empty_answer(self) -> None:
        counts = fabric.count(np.array([], dtype=np.int64), kind="fat-tree", switch_ports=64, rails=8)
        assert counts.leaf.shape == (0,)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"nodes": 0}, "nodes holds 0; expected at least 1"),
            ({"nodes": [1.5]}, "nodes has type float64; expected integers"),
            ({"kind": "torus"}, "kind is 'torus'; expected one of rail-optimized, fat-tree, rail-only"),
            ({"tiers": 4}, "tiers is 4; expected 1, 2, 3 or None"),
            ({"switch_ports": 1}, "switch_ports is 1; expected at least 2"),
            ({"oversubscription": 0}, "oversubscription is 0; expected at least 1"),
            ({"ports_per_rail": 0}, "ports_per_rail is 0; expected at least 1"),
            ({"planes": 0}, "planes is 0; expected at least 1"),
            ({"extra_endpoints": -1}, "extra_endpoints is -1; expected at least 0"),
        ],
    )
    def test_refusals(self, change: dict[str, Any], message: str) -> None:
        asked: dict[str, Any] = {"nodes": 8, "kind": "fat-tree", "switch_ports": 64, "rails": 8, **change}
        with pytest.raises(ValueError) as refusal:
            fabric.count(asked.pop("nodes"), **asked)
        assert str(refusal.value) == message


FABRICS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(fabric.KINDS),
        "switch_ports": st.sampled_from([8, 20, 36, 48, 64, 128, 144]),
        "rails": st.integers(1, 9),
        "ports_per_rail": st.integers(1, 3),
        "oversubscription": st.integers(1, 4),
        "spine_oversubscription": st.integers(1, 3),
        "tiers": st.sampled_from([1, 2, 3, None]),
        "planes": st.sampled_from([1, 2]),
        "extra_endpoints": st.sampled_from([0, 4]),
    }
)


def limit_of(parameters: dict[str, Any]) -> int:
    """Most servers of a fabric; with free tiers, of the largest."""
    tiers = parameters["tiers"] or 3
    return int(fabric.count(1, **{**parameters, "tiers": tiers}).limit_nodes)


@settings(max_examples=150, deadline=None)
@given(parameters=FABRICS, place=st.floats(0, 1))
def test_no_switch_has_more_links_than_ports(parameters: dict[str, Any], place: float) -> None:
    limit = limit_of(parameters)
    assume(limit >= 1)
    nodes = 1 + round(place * (limit - 1))
    got = one(nodes, **parameters)
    assert got["feasible"]
    copies = parameters["planes"] * (parameters["rails"] if parameters["kind"] == "rail-only" else 1)
    ports = parameters["switch_ports"]
    endpoints = nodes * parameters["rails"] * parameters["ports_per_rail"] + parameters["extra_endpoints"]
    assert got["host_links"] == parameters["planes"] * endpoints
    if got["tiers"] == 1:
        assert got["host_links"] <= ports * got["leaf"]
        return
    down, up = fabric.split_ports(ports, parameters["oversubscription"])
    assert down <= parameters["oversubscription"] * up
    assert got["host_links"] <= down * got["leaf"]
    assert got["leaf_spine_links"] == up * got["leaf"]
    for name in ("leaf", "spine", "core", "leaf_spine_links", "spine_core_links"):
        assert got[name] % copies == 0
        got[name] //= copies
    if got["tiers"] == 2:
        assert up % got["spine"] == 0
        assert got["leaf"] * (up // got["spine"]) <= ports
        assert got["core"] == got["spine_core_links"] == 0
        return
    pod_leaves = leaves_of_a_pod(parameters)
    assert got["spine_core_links"] * parameters["spine_oversubscription"] >= got["leaf_spine_links"]
    wire_three_tiers(got, ports, up, pod_leaves, parameters["spine_oversubscription"])


def leaves_of_a_pod(parameters: dict[str, Any]) -> int:
    down, _ = fabric.split_ports(parameters["switch_ports"], parameters["spine_oversubscription"])
    together = parameters["rails"] if parameters["kind"] == "rail-optimized" else 1
    return down // together * together


def wire_three_tiers(got: dict[str, int], ports: int, up: int, pod_leaves: int, spine_oversubscription: int) -> None:
    """Lay every link of leaf to spine to core as the counts say, and count the ports of every switch.

    The j-th uplinks of all leaves form lane j. Within a pod a lane runs through one spine; above, to its own
    core switches, or to one that it shares with other lanes.
    """
    spine_down, spine_up = fabric.split_ports(ports, spine_oversubscription)
    pods = -(-got["leaf"] // pod_leaves)
    last_leaves = got["leaf"] - (pods - 1) * pod_leaves
    last_spines = got["spine"] - (pods - 1) * up
    last_up, left_over = divmod(got["spine_core_links"] - (pods - 1) * up * spine_up, up)
    assert left_over == 0
    assert up % last_spines == 0
    assert up % got["core"] == 0 or got["core"] % up == 0
    down_used: Counter[tuple[int, int]] = Counter()
    up_used: Counter[tuple[int, int]] = Counter()
    core_used: Counter[int] = Counter()
    for pod in range(pods):
        last = pod == pods - 1
        lanes_a_spine = up // last_spines if last else 1
        uplinks = last_up if last else spine_up
        for lane in range(up):
            spine = (pod, lane // lanes_a_spine)
            down_used[spine] += last_leaves if last else pod_leaves
            up_used[spine] += uplinks
            if got["core"] <= up:
                core_used[lane // (up // got["core"])] += uplinks
            else:
                above = got["core"] // up
                assert uplinks % above == 0
                for core in range(lane * above, (lane + 1) * above):
                    core_used[core] += uplinks // above
    assert len(down_used) == got["spine"]
    assert len(core_used) == got["core"]
    assert max(down_used.values()) <= spine_down
    assert max(up_used.values()) <= spine_up
    assert max(core_used.values()) <= ports
    assert sum(down_used.values()) == got["leaf_spine_links"]
    assert sum(core_used.values()) == got["spine_core_links"]


@settings(max_examples=60, deadline=None)
@given(parameters=FABRICS)
def test_more_servers_never_need_less(parameters: dict[str, Any]) -> None:
    limit = limit_of(parameters)
    assume(limit >= 2)
    nodes = np.unique(np.linspace(1, limit, 400).round().astype(np.int64))
    counts = fabric.count(nodes, **parameters)
    assert counts.feasible.all()
    for name in (*PRINTED, "host_links", "tiers"):
        assert (np.diff(getattr(counts, name)) >= 0).all(), name


@settings(max_examples=30, deadline=None)
@given(parameters=FABRICS, s=st.integers(1, 3))
def test_more_oversubscription_never_needs_more_uplinks(parameters: dict[str, Any], s: int) -> None:
    at_1_to_1 = limit_of({**parameters, "tiers": 2, "oversubscription": 1})
    assume(at_1_to_1 >= 1)
    nodes = np.unique(np.linspace(1, at_1_to_1, 50).astype(np.int64))
    tight, loose = (fabric.count(nodes, **{**parameters, "tiers": 2, "oversubscription": each}) for each in (s, s + 1))
    both = tight.feasible & loose.feasible
    assert (loose.leaf <= tight.leaf)[both].all()
    assert (loose.leaf_spine_links <= tight.leaf_spine_links)[both].all()


def test_free_tiers_take_the_fewest_that_reach() -> None:
    nodes = np.array([1, 8, 9, 256, 257, 8192, 8193])
    parameters: dict[str, Any] = {"kind": "rail-optimized", "switch_ports": 64, "rails": 8}
    free = fabric.count(nodes, **parameters)
    assert free.tiers.tolist() == [1, 1, 2, 2, 3, 3, 3]
    assert free.feasible.tolist() == [True] * 6 + [False]
    for tiers in fabric.TIERS:
        fixed = fabric.count(nodes, **parameters, tiers=tiers)
        taken = free.tiers == tiers
        for field in fields(free):
            assert (getattr(free, field.name) == getattr(fixed, field.name))[taken].all(), field.name
