"""`verify`: a solution is computed again from its file alone, and no alteration of it passes."""

from __future__ import annotations

import copy
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codesign import parse, solve
from codesign.cli import main
from codesign.design.solution import Solution, document_digest
from codesign.exact.verify import TAKEN, verify
from codesign.export import files
from codesign.spec.instance import Instance

ROOT = Path(__file__).parents[2]
TEXT = """
schema: 1
name: to-be-verified
workloads:
  - model: llama-3.1-8b
    sequence_length: 4096
    global_batch: 32
    tokens: 10B
    plan: {cp: 1, micro_batch: [1, 2], zero: 1, pp: 2, virtual_stages: [1, 2], recompute: none}
offers:
  servers: [hgx-h100]
  nics: [cx7-400g, cx6-200g]
  fabrics: {kinds: [rail-optimized, fat-tree], oversubscription: [1, 2], switches: [quantum2-qm9700]}
  storage: [{product: weka-pod8, units: [1, 2]}]
limits: {capex: $3M, power: 100kW, deadline: 30d, gpus: 32}
objective: time_to_train
assumptions: {installation_fraction: 0.1}
"""
Document = dict[str, Any]
Alteration = Callable[[Document], None]


@pytest.fixture(scope="module")
def solution() -> Solution:
    return solve(parse(TEXT))


@pytest.fixture(scope="module")
def document(solution: Solution) -> Document:
    """As it comes out of a file."""
    found: Document = json.loads(json.dumps(solution.to_document()))
    return found


def command(file: Path) -> int:
    return CliRunner().invoke(main, ["verify", str(file)]).exit_code


def resigned(altered: Document) -> Document:
    """With the digests that an attacker would put in again."""
    try:
        altered["instance_digest"] = Instance.from_document(altered["instance"]).digest()
    except Exception:  # noqa: BLE001 - the instance may be what was broken
        pass
    altered["digest"] = document_digest(altered)
    return altered


# --------------------------------------------------------------------------------------------------- nothing altered


def test_a_fresh_process_computes_every_figure_again(solution: Solution, document: Document, tmp_path: Path) -> None:
    files.write(solution, tmp_path)
    call = "from codesign.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", call, "verify", str(tmp_path), "--json"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    assert found["verified"] is True
    assert found["differences"] == []
    assert found["tables"] == ["rank_map.csv", "bill_of_materials.csv"]
    assert found["not_recomputed"] == list(TAKEN)
    # every leaf of the document, and every cell of the tables beside it
    cells = sum(len(row) for name in found["tables"] for row in _rows(tmp_path / name)[1:])
    assert found["compared"] >= len(list(leaves(document))) + cells


def test_no_solver_is_loaded(solution: Solution, tmp_path: Path) -> None:
    files.write(solution, tmp_path)
    code = (
        "import sys; from codesign import verify; from pathlib import Path\n"
        "assert verify(Path(sys.argv[1])).verified; assert 'ortools' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr


def test_all_forms_of_a_solution(solution: Solution, document: Document, tmp_path: Path) -> None:
    files.write(solution, tmp_path)
    for form in (solution, document, tmp_path, tmp_path / "solution.json", str(tmp_path)):
        assert verify(form).verified, form


def test_spelling_is_no_alteration(document: Document, tmp_path: Path) -> None:
    """Other indentation, another order of keys, 8 as 8.0."""
    respelt = json.loads(json.dumps(document, sort_keys=True), parse_int=lambda word: int(word))
    respelt["design"]["purchase"]["checkpoint_interval_s"] = float(
        document["design"]["purchase"]["checkpoint_interval_s"]
    )
    file = tmp_path / "respelt.json"
    file.write_text(json.dumps(respelt, indent=7, sort_keys=True))
    assert verify(file).verified
    assert command(file) == 0


def test_an_answer_without_a_design(instances: Any) -> None:
    unknown = Solution("unknown", instances.instance("bought-8b"), "s")
    assert verify(unknown).verified
    altered = unknown.to_document() | {"status": "optimal"}
    assert {one.path for one in verify(resigned(altered)).differences} == {"design", "evaluation", "proof"}


# ------------------------------------------------------------------------------------------------------- altered


def at(document: Document, path: str) -> tuple[Any, Any]:
    """The container and the key of a place such as `design.purchase.servers[0].count`."""
    *before, last = path.replace("[", ".[").split(".")
    inside: Any = document
    for part in before:
        inside = inside[int(part[1:-1]) if part.startswith("[") else part]
    return inside, int(last[1:-1]) if last.startswith("[") else last


def put(path: str, change: Callable[[Any], Any]) -> Alteration:
    def alter(document: Document) -> None:
        inside, key = at(document, path)
        before = inside[key]
        inside[key] = change(before)
        assert inside[key] != before, "nothing was altered"

    return alter


def scaled(path: str, factor: float = 1.0001) -> Alteration:
    return put(path, lambda value: value * factor)


def raised(path: str, by: int = 1) -> Alteration:
    return put(path, lambda value: value + by)


def to(path: str, value: Any) -> Alteration:
    return put(path, lambda _: value)


def removed(path: str) -> Alteration:
    def alter(document: Document) -> None:
        inside, key = at(document, path)
        del inside[key]

    return alter


def added(path: str, key: str, value: Any) -> Alteration:
    def alter(document: Document) -> None:
        inside, last = at(document, path)
        inside[last][key] = value

    return alter


PRETRAIN = "evaluation.workloads.pretrain"
PURCHASE = "design.purchase"
PLACED = "design.workloads.pretrain"

RECOMPUTED: dict[str, Alteration] = {
    "tensor parallel": put(f"{PLACED}.plan.tp", lambda tp: tp * 2),
    "data parallel": put(f"{PLACED}.plan.dp", lambda dp: dp * 2),
    "virtual stages": put(f"{PLACED}.plan.virtual_stages", lambda v: 3 - v),
    "micro-batch": put(f"{PLACED}.plan.micro_batch", lambda b: 3 - b),
    "recomputation": to(f"{PLACED}.plan.recompute", "full"),
    "sharding": to(f"{PLACED}.plan.zero", 0),
    "a degree that is no whole number": put(f"{PLACED}.plan.tp", lambda tp: tp + 0.5),
    "a digit of a layout": put(f"{PLACED}.placement.layout.dp.domain", lambda digit: digit + 1),
    "the servers": put(f"{PURCHASE}.servers[0].count", lambda count: count + 1),
    "the kind of server": to(f"{PURCHASE}.servers[0].offer", "hgx-h200"),
    "the switch": to(f"{PURCHASE}.network.switch", "spectrum4-sn5600"),
    "the fabric": to(f"{PURCHASE}.network.kind", "rail-only"),
    "oversubscription": raised(f"{PURCHASE}.network.oversubscription"),
    "tiers": raised(f"{PURCHASE}.network.tiers"),
    "the NIC": to(f"{PURCHASE}.network.nic", "cx9"),
    "storage units": put(f"{PURCHASE}.storage.units", lambda units: 3 - units),
    "the checkpoint interval": scaled(f"{PURCHASE}.checkpoint_interval_s"),
    "a count of the bill": raised(f"{PURCHASE}.bill_of_materials[0].count"),
    "a price of the bill": scaled(f"{PURCHASE}.bill_of_materials[0].unit_usd"),
    "a total of the bill": scaled(f"{PURCHASE}.bill_of_materials[1].total_usd"),
    "watts of the bill": raised(f"{PURCHASE}.bill_of_materials[1].power_w"),
    "an item of the bill": to(f"{PURCHASE}.bill_of_materials[0].item", "hgx-h200"),
    "a line of the bill left out": removed(f"{PURCHASE}.bill_of_materials[1]"),
    "capex": scaled(f"{PURCHASE}.capex_usd", 1.00001),
    "capex of the evaluation": scaled("evaluation.capex_usd", 1.00001),
    "power": raised(f"{PURCHASE}.power_w"),
    "step time": scaled(f"{PRETRAIN}.step_time_s"),
    "tokens a second": scaled(f"{PRETRAIN}.tokens_per_s"),
    "mfu": scaled(f"{PRETRAIN}.mfu"),
    "hfu": scaled(f"{PRETRAIN}.hfu"),
    "goodput": scaled(f"{PRETRAIN}.goodput"),
    "time to train": scaled(f"{PRETRAIN}.time_to_train_s"),
    "time to train that is not told": to(f"{PRETRAIN}.time_to_train_s", None),
    "a part of the step": scaled(f"{PRETRAIN}.breakdown_s.compute"),
    "a part left out": removed(f"{PRETRAIN}.breakdown_s.attention"),
    "a part too many": added(f"{PRETRAIN}.breakdown_s", "magic", 0.0),
    "the bubble": scaled(f"{PRETRAIN}.bubble_fraction"),
    "a save": scaled(f"{PRETRAIN}.checkpoint_save_s"),
    "memory": scaled(f"{PRETRAIN}.memory.worst_rank_bytes"),
    "memory of a GPU": scaled(f"{PRETRAIN}.memory.capacity_bytes"),
    "a part of memory": scaled(f"{PRETRAIN}.memory.parts_bytes.activations"),
    "a stage of memory": scaled(f"{PRETRAIN}.memory.stages_bytes[1]"),
    "the fullest stage": raised(f"{PRETRAIN}.memory.worst_stage"),
    "the verdict": put(f"{PRETRAIN}.memory.verdict", lambda word: "tight" if word == "fits" else "fits"),
    "a limit's value": scaled("evaluation.limits[0].value"),
    "a limit": scaled("evaluation.limits[1].most"),
    "a limit that is said to be broken": to("evaluation.limits[0].kept", False),
    "a violation": to("evaluation.violations", ["memory: none left"]),
    "the objective of the evaluation": scaled("evaluation.objective"),
    "what is minimised": scaled("evaluation.minimised"),
    "the value": scaled("objective.value"),
    "the gap": put("objective.gap", lambda gap: gap + 1e-6),
    "the unit": to("objective.unit", "h"),
    "the name of the objective": to("objective.name", "step_time"),
    "a price of the instance": scaled("instance.offers.servers[0].price_usd"),
    "a peak of the instance": scaled("instance.offers.servers[0].gpu.peak_flops.bf16"),
    "the tokens of the instance": scaled("instance.workloads[0].tokens"),
    "a limit of the instance": scaled("instance.limits.capex_usd"),
    "an assumption": scaled("instance.assumptions.pue"),
    "a field of the instance that there is not": added("instance.limits", "luck", 1),
    "status": to("status", "infeasible"),
    "a status that there is not": to("status", "perfect"),
    "no design": to("design", None),
    "no evaluation": to("evaluation", None),
    "no proof": to("proof", None),
    "a conflict": to("conflict", {"limits": ["capex"], "moves": {}}),
    "a bound better than the value": put("objective.bound", lambda bound: bound * 1.1),
    "a bound that is infinite": to("objective.bound", 1e999),
    "a solver that proved nothing": to("proof.proven_by", ["oracle"]),
    "a proof better than the value": put("proof.proofs[0].bound", lambda bound: bound * 1.1),
    "a proof worse than the bound": put("proof.proofs[0].bound", lambda bound: bound * 0.9),
    "a proof without a bound": to("proof.proofs[1].bound", None),
    "optimal, by nobody": to("proof.proven_by", []),
    "a key left out": removed(f"{PURCHASE}.power_w"),
    "a key too many": added("evaluation", "extra", 1),
    "another workload": put("design.workloads", lambda found: {"other": found["pretrain"]}),
    "the place of the rank map": to(f"{PLACED}.placement.rank_map", "elsewhere.csv"),
    "the schema": to("schema", 2),
}
"""What a fresh computation, or a rule that a file must obey, finds even under a digest that was made anew."""

SIGNED: dict[str, Alteration] = {
    "the bound": put("objective.bound", lambda bound: bound * 0.9),
    "iterations": raised("proof.iterations"),
    "cuts": raised("proof.cuts"),
    "designs judged": raised("proof.designs_evaluated"),
    "the space": raised("proof.space_designs"),
    "seconds": raised("proof.wall_s"),
    "who proved it": to("proof.proven_by", ["highs"]),
    "the status of a proof": to("proof.proofs[1].status", "guessed"),
    "determinism": put("proof.deterministic", lambda value: not value),
    "the seed": raised("proof.seed"),
    "optimal or feasible": put("status", lambda status: "feasible" if status == "optimal" else "optimal"),
    "a note": to("notes", ["all is well"]),
    "the version": to("codesign", "99.0"),
    "the digest of the instance": to("instance_digest", "0" * 64),
    "the digest": to("digest", "0" * 64),
    "no digest": removed("digest"),
}
"""What only a solve can find: held by the digest."""


def caught(altered: Document, file: Path) -> list[str]:
    """Paths of the differences; asserts that the library and the command agree."""
    found = verify(altered)
    file.write_text(json.dumps(altered))
    assert command(file) == (5 if found.differences else 0)
    return [one.path for one in found.differences]


@pytest.mark.parametrize("kind", RECOMPUTED)
def test_what_is_computed_again(document: Document, kind: str, tmp_path: Path) -> None:
    altered = copy.deepcopy(document)
    RECOMPUTED[kind](altered)
    assert caught(copy.deepcopy(altered), tmp_path / "plain.json")
    paths = caught(resigned(altered), tmp_path / "resigned.json")
    assert paths
    assert "digest" not in paths


@pytest.mark.parametrize("kind", SIGNED)
def test_what_only_the_digest_holds(document: Document, kind: str, tmp_path: Path) -> None:
    altered = copy.deepcopy(document)
    SIGNED[kind](altered)
    assert "digest" in caught(altered, tmp_path / "altered.json")


def test_a_price_that_runs_through_all_sums(document: Document, tmp_path: Path) -> None:
    """The attacker lowers a price of the bill and adds everything up again; the instance still has the old one."""
    altered = copy.deepcopy(document)
    purchase, evaluation = altered["design"]["purchase"], altered["evaluation"]
    line = purchase["bill_of_materials"][0]
    less = 0.1 * line["total_usd"]
    line["unit_usd"] *= 0.9
    line["total_usd"] -= less
    for where in (purchase, evaluation):
        where["capex_usd"] -= less
    paths = caught(resigned(altered), tmp_path / "altered.json")
    assert {"design.purchase.capex_usd", "design.purchase.bill_of_materials[0].unit_usd"} <= set(paths)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("truncated", lambda text: text[: len(text) // 2]),
        ("empty", lambda text: ""),
        ("not a number", lambda text: text.replace('"mfu": ', '"mfu": NaN, "was": ', 1)),
        ("infinity", lambda text: text.replace('"mfu": ', '"mfu": Infinity, "was": ', 1)),
        ("a key twice", lambda text: text.replace('"mfu": ', '"mfu": 0.9, "mfu": ', 1)),
        ("a list", lambda text: f"[{text}]"),
        ("no text", lambda text: "\x00" + text),
        ("something after it", lambda text: text + "{}"),
        ("another schema", lambda text: text.replace('"schema": 1', '"schema": 7', 1)),
        ("a comment", lambda text: "// fine\n" + text),
    ],
)
def test_files_that_are_none(solution: Solution, name: str, broken: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "solution.json"
    text = files.solution_text(solution)
    file.write_text(broken(text))
    assert file.read_text() != text, name
    assert verify(file).differences, name
    assert command(file) == 5


def _rows(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


@pytest.mark.parametrize("table", ["rank_map.csv", "bill_of_materials.csv"])
def test_every_cell_of_the_tables(solution: Solution, table: str, tmp_path: Path) -> None:
    files.write(solution, tmp_path)
    rows = _rows(tmp_path / table)
    whole = (tmp_path / table).read_text()

    def differs(changed: list[list[str]]) -> bool:
        (tmp_path / table).write_text("".join(",".join(row) + "\n" for row in changed))
        found = verify(tmp_path)
        assert all(one.path.startswith(table) for one in found.differences)
        return not found.verified

    assert not differs(rows)
    for number in (0, 1, len(rows) - 1):
        for column, cell in enumerate(rows[number]):
            changed = [list(row) for row in rows]
            changed[number][column] = str(float(cell) + 1) if cell.replace(".", "").isdigit() else cell + "x"
            assert differs(changed), (number, column)
    assert differs(rows[:-1])
    assert differs([*rows, rows[-1]])
    assert differs([rows[0], rows[2], rows[1], *rows[3:]])
    assert differs([])
    assert command(tmp_path) == 5
    (tmp_path / table).write_text(whole)
    assert command(tmp_path) == 0


# -------------------------------------------------------------------------------------------------- any leaf at all


def leaves(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(inside, Mapping):
        for key, value in inside.items():
            yield from leaves(value, (*path, key))
    elif isinstance(inside, list):
        for index, value in enumerate(inside):
            yield from leaves(value, (*path, index))
    else:
        yield path, inside


def replaced(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    altered = copy.deepcopy(document)
    inside: Any = altered
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return altered


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@settings(max_examples=300)
@given(data=st.data())
def test_any_number_altered(document: Document, data: st.DataObject) -> None:
    path, value = data.draw(st.sampled_from([one for one in leaves(document) if is_number(one[1])]))
    other = data.draw(st.sampled_from([value * 1.01, value + 1, -value, value * (1 + 1e-8)]))
    assume(other != value)
    assert not verify(replaced(document, path, other)).verified


@settings(max_examples=300)
@given(data=st.data())
def test_any_figure_altered_under_a_new_digest(document: Document, data: st.DataObject) -> None:
    """Figures of the design and of its evaluation, which follow from instance and design."""
    figures = [one for one in leaves(document) if is_number(one[1]) and one[0][0] in ("design", "evaluation")]
    figures += [(("objective", name), document["objective"][name]) for name in ("value", "gap")]
    path, value = data.draw(st.sampled_from(figures))
    other = data.draw(st.sampled_from([value * 1.01, value + 1, -value, value * (1 + 1e-8)]))
    assume(abs(other - value) > 1e-8 * abs(value) * (1 - 1e-6) and other != value)
    assume(path != ("objective", "gap") or abs(other - value) > 1e-9)
    assert not verify(resigned(replaced(document, path, other))).verified


STRANGE = (None, "", "x", "1", True, False, [], {}, [1], {"a": 1}, 0, -1, 10**400, -(10**400), 1e308, 1e-308)


@settings(max_examples=400)
@given(data=st.data())
def test_no_leaf_of_another_kind_passes_or_breaks_it(document: Document, data: st.DataObject) -> None:
    """Text for numbers, nothing for something, absurd numbers: a difference, never an exception."""
    path, value = data.draw(st.sampled_from(list(leaves(document))))
    other = data.draw(st.sampled_from(STRANGE))
    # 1 and 1.0 are one number; True is none
    assume(not (is_number(other) and is_number(value) and other == value))
    assume(not (type(other) is type(value) and other == value))
    assert not verify(replaced(document, path, other)).verified
    found = verify(resigned(replaced(document, path, other)))
    if path[0] in ("design", "evaluation", "status") or path == ("objective", "value"):
        assert not found.verified
    if path[0] == "proof" and is_number(value) and not is_number(other):
        assert not found.verified


@pytest.mark.parametrize("path", ["objective.value", "objective.bound", "evaluation.capex_usd"])
@pytest.mark.parametrize("value", [None, "x", [], 10**400, 1e999])
def test_the_command_says_so_too(document: Document, path: str, value: Any, tmp_path: Path) -> None:
    """One JSON document, and 5, whatever the file holds."""
    altered = copy.deepcopy(document)
    to(path, value)(altered)
    file = tmp_path / "altered.json"
    file.write_text(json.dumps(altered))
    run = CliRunner().invoke(main, ["verify", str(file), "--json"])
    assert run.exit_code == 5
    found = json.loads(run.stdout)
    assert found["verified"] is False
    assert found["differences"]
