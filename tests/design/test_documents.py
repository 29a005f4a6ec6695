"""Designs and solutions as documents: what is written is read back, to the last digit, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign import read, solve
from codesign.design import DIMENSIONS, Design
from codesign.design.certificate import Certificate, Proof
from codesign.design.solution import (
    Conflict,
    Solution,
    document_digest,
    parse_document,
    read_document,
)
from codesign.design.tables import BILL_COLUMNS, RANK_MAP_COLUMNS, bill_rows, rank_map_rows
from codesign.errors import StaleSolutionError

INSTANCES = Path(__file__).parents[2] / "instances"


def through_json(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


def certificate(value: float, bound: float) -> Certificate:
    return Certificate(
        value=value, bound=bound, gap=abs(value - bound) / abs(value), proven_by=("highs",),
        proofs=(Proof("cp-sat", "stopped", bound / 2, 0.25), Proof("highs", "optimal", bound, 1.5)),
        iterations=3, cuts=2, designs_evaluated=17, space_designs=5, excluded=4, wall_s=0.1, first_design_s=0.05,
        seed=7, threads=2, deterministic=False,
    )  # fmt: skip


class TestDesign:
    def test_round_trip(self, instances: Any, instance_name: str) -> None:
        for design in instances.case(instance_name, 30, seed=51).designs:
            document = design.to_document()
            assert Design.from_document(document) == design
            again = Design.from_document(through_json(document))
            assert again == design
            assert hash(again) == hash(design)
            assert type(again.placement.tp) is type(design.placement.tp)
            assert again.to_document() == document

    def test_every_field_is_told(self, instances: Any) -> None:
        """Another value of any field is another document, and comes back as that value."""
        design = instances.design("storage-8b", 1)
        document = design.to_document()

        def leaves(inside: Any, path: tuple[str, ...] = ()) -> Any:
            for key, value in inside.items():
                yield from leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]

        found = dict(leaves(document))
        assert len(found) == 1 + 13 + 3 * 4 + 2 + 5 + 2 + 1
        for path, value in found.items():
            other = through_json(document)
            inside = other
            for part in path[:-1]:
                inside = inside[part]
            inside[path[-1]] = value + 1 if isinstance(value, int | float) else value + "x"
            assert Design.from_document(other) != design
            assert Design.from_document(other).to_document() == other

    @pytest.mark.parametrize(
        "breaking",
        [
            lambda d: d.pop("plan"),
            lambda d: d["plan"].pop("tp"),
            lambda d: d["plan"].update(extra=1),
            lambda d: d["placement"].pop("cp"),
            lambda d: d["placement"]["tp"].pop("leaf"),
            lambda d: d["placement"]["tp"].update(rack=1),
            lambda d: d["purchase"]["network"].update(colour="red"),
            lambda d: d["purchase"].pop("checkpoint_interval_s"),
        ],
    )
    def test_what_is_none_is_refused(self, instances: Any, breaking: Any) -> None:
        document = instances.design("storage-8b", 1).to_document()
        breaking(document)
        with pytest.raises((KeyError, TypeError)):
            Design.from_document(document)

    def test_world_and_degrees(self, instances: Any) -> None:
        for design in instances.case("leaves-8b", 50, seed=52).designs:
            plan = design.plan
            assert plan.world == plan.tp * plan.cp * plan.pp * plan.dp
            assert [plan.degree(d) for d in DIMENSIONS] == [plan.tp, plan.cp, plan.pp, plan.dp]


class TestSolution:
    def test_round_trip_of_any_design(self, instances: Any, instance_name: str) -> None:
        case = instances.case(instance_name, 15, seed=53)
        for design, evaluation in zip(case.designs, case.evaluations, strict=True):
            solution = Solution(
                "feasible", case.model.instance, case.model.unit, design, evaluation,
                certificate(evaluation.objective, 0.9 * evaluation.objective), notes=("a note",),
            )  # fmt: skip
            document = solution.to_document()
            assert Solution.from_document(document) == solution
            again = Solution.from_document(through_json(document))
            assert again == solution
            assert again.to_document() == document

    @pytest.mark.parametrize("file", ["small/8b-owned-and-bought.yaml", "infeasible/storage-too-small.yaml"])
    def test_round_trip_of_a_solve(self, file: str) -> None:
        solution = solve(read(INSTANCES / file))
        again = Solution.from_document(through_json(solution.to_document()))
        assert again == solution
        assert again.to_document() == solution.to_document()
        assert (solution.design is None) == (solution.conflict is not None)

    def test_round_trip_without_a_design(self, instances: Any) -> None:
        for solution in (
            Solution("unknown", instances.instance("bought-8b"), "s", notes=("the time was over",)),
            Solution(
                "infeasible", instances.instance("bought-8b"), "s", conflict=Conflict(("capex",), {"capex": "$1"})
            ),
        ):
            assert Solution.from_document(through_json(solution.to_document())) == solution

    def test_it_stands_in_the_document_once(self, instances: Any) -> None:
        """Money and figures of the evaluation are those of the purchase."""
        case = instances.case("storage-8b", 1, seed=54)
        (evaluation,) = case.evaluations
        document = Solution(
            "feasible", case.model.instance, "USD", case.designs[0], evaluation, certificate(2.0, 1.0)
        ).to_document()
        purchase = document["design"]["purchase"]
        assert purchase["capex_usd"] == document["evaluation"]["capex_usd"] == evaluation.capex_usd
        assert purchase["power_w"] == document["evaluation"]["power_w"] == evaluation.power_w
        assert purchase["bill_of_materials"] == [asdict(line) for line in evaluation.bill_of_materials]
        assert document["objective"]["gap"] == 0.5
        assert document["instance_digest"] == case.model.instance.digest()
        assert "value" not in document["proof"]


class TestDigest:
    def test_spelling_is_free_and_values_are_not(self) -> None:
        plain = {"a": 8, "b": [1.5, {"c": None}], "digest": "any"}
        digest = document_digest(plain)
        assert document_digest({"b": [1.5, {"c": None}], "a": 8.0}) == digest
        assert document_digest({"b": (1.5, {"c": None}), "a": 8, "digest": "other"}) == digest
        for other in (
            {"a": 9, "b": [1.5, {"c": None}]},
            {"a": "8", "b": [1.5, {"c": None}]},
            {"a": 8, "b": [1.5, {"c": False}]},
            {"a": 8, "b": [{"c": None}, 1.5]},
            {"a": 8, "b": [1.5, {"c": None}], "d": 0},
            {"a": True, "b": [1.5, {"c": None}]},
            {"a": 8, "b": [1.5000000000000002, {"c": None}]},
        ):
            assert document_digest(other) != digest, other

    @settings(max_examples=200)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        )
    )
    def test_it_survives_json(self, value: Any) -> None:
        document = {"value": value}
        assert document_digest(json.loads(json.dumps(document))) == document_digest(document)


class TestFile:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "is not JSON"),
            (b"{", "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b'{"schema": 1, "schema": 1, "instance": {}}', "key 'schema' comes twice"),
            (b'{"schema": NaN, "instance": {}}', "NaN is not a number of JSON"),
            (b'{"schema": -Infinity, "instance": {}}', "-Infinity is not a number of JSON"),
            (b"[" * 100_000, "is not JSON"),
            (b"[]", "is not a codesign solution"),
            (b'{"schema": 1}', "is not a codesign solution"),
            (b'{"schema": 2, "instance": {}}', "schema 2 is not known"),
            (b'{"schema": "1", "instance": {}}', "schema '1' is not known"),
            (b'{"schema": true, "instance": {}}', "schema True is not known"),
            (b'{"schema": 1.0, "instance": {}}', "schema 1.0 is not known"),
        ],
    )
    def test_what_is_no_solution(self, content: bytes, said: str) -> None:
        with pytest.raises(StaleSolutionError, match=f"file: .*{said}"):
            parse_document(content, "file")

    def test_a_folder_or_a_file(self, tmp_path: Path, instances: Any) -> None:
        document = Solution("unknown", instances.instance("bought-8b"), "s").to_document()
        (tmp_path / "solution.json").write_text(json.dumps(document))
        assert read_document(tmp_path) == read_document(tmp_path / "solution.json") == through_json(document)
        with pytest.raises(StaleSolutionError, match="there is no such file"):
            read_document(tmp_path / "none.json")


def test_tables(instances: Any) -> None:
    case = instances.case("storage-8b", 3, seed=55)
    for design, evaluation in zip(case.designs, case.evaluations, strict=True):
        rows = rank_map_rows(design)
        assert [row[0] for row in rows] == list(range(design.plan.world))
        assert all(len(row) == len(RANK_MAP_COLUMNS) for row in rows)
        for name in ("tp", "cp", "dp", "pp"):
            column = [row[RANK_MAP_COLUMNS.index(name)] for row in rows]
            assert set(column) == set(range(design.plan.degree(name)))
        bill = bill_rows(evaluation.bill_of_materials)
        assert [dict(zip(BILL_COLUMNS, row, strict=True)) for row in bill] == [
            asdict(line) for line in evaluation.bill_of_materials
        ]
    moved = replace(case.designs[0], purchase=replace(case.designs[0].purchase, servers=99))
    assert rank_map_rows(moved) == rank_map_rows(case.designs[0])  # the map is of plan and placement alone
