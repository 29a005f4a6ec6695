"""Malformed instances: every one is refused at the right place, in words for people, and never with a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from codesign import SpecError, read, solve
from codesign.cli import main

GOOD = """\
schema: 1
name: good
workloads:
  - model: llama-3.1-8b
    sequence_length: 4096
    global_batch: 64
    tokens: 10B
    plan: {tp: [1, 2]}
offers:
  servers: [hgx-h100]
  storage: [weka-pod8]
limits:
  capex: $3M
  power: 100kW
objective: time_to_train
"""

# name, what is replaced, by what, line, column (0: not asked), path, words of the message
CASES: list[tuple[str, str, str, int, int, str, tuple[str, ...]]] = [
    ("wrong type", "global_batch: 64", "global_batch: many", 6, 19, "workloads[0].global_batch", ("'many'", "whole")),
    (
        "fraction",
        "global_batch: 64",
        "global_batch: 64.5",
        6,
        19,
        "workloads[0].global_batch",
        ("64.5", "whole number"),
    ),
    ("negative", "global_batch: 64", "global_batch: -64", 6, 19, "workloads[0].global_batch", ("-64", "at least 1")),
    ("zero", "sequence_length: 4096", "sequence_length: 0", 5, 22, "workloads[0].sequence_length", ("at least 1",)),
    (
        "true for a number",
        "global_batch: 64",
        "global_batch: true",
        6,
        19,
        "workloads[0].global_batch",
        ("true", "whole"),
    ),
    ("quoted number", "global_batch: 64", 'global_batch: "64"', 6, 19, "workloads[0].global_batch", ("'64'", "whole")),
    ("huge number", "global_batch: 64", "global_batch: 1" + "0" * 39, 6, 19, "workloads[0].global_batch", ("at most",)),
    ("number of 5000 digits", "global_batch: 64", "global_batch: 1" + "0" * 5000, 6, 19, "", ("digits",)),
    ("huge exponent", "capex: $3M", "capex_usd: 1e999", 13, 14, "limits.capex_usd", ("finite",)),
    ("not a number", "capex: $3M", "capex_usd: .nan", 13, 14, "limits.capex_usd", ("nan",)),
    ("infinity", "power: 100kW", "power_w: .inf", 14, 12, "limits.power_w", ("inf",)),
    ("negative money", "$3M", "$-3M", 13, 10, "limits.capex", ("'$-3M'", "sum of money")),
    ("minus money", "$3M", "-$3M", 13, 10, "limits.capex", ("0",)),
    ("no unit", "power: 100kW", "power: 100", 14, 10, "limits.power", ("100", "no unit", "1.2MW")),
    ("wrong unit", "power: 100kW", "power: 100kB", 14, 10, "limits.power", ("unit of size",)),
    ("case of a unit", "power: 100kW", "power: 100KW", 14, 10, "limits.power", ("case", "kW")),
    ("unknown unit", "tokens: 10B", "tokens: 10X", 7, 13, "workloads[0].tokens", ("'X'", "1.5T")),
    ("thousands separator", "$3M", "$3,000,000", 13, 10, "limits.capex", ("sum of money",)),
    ("unknown key", "power: 100kW", "powr: 100kW", 14, 3, "limits.powr", ("known here", "power")),
    ("unknown key at the top", "objective: time", "objectiv: time", 15, 1, "objectiv", ("did you mean objective",)),
    ("duplicate key", "objective: time_to_train", "name: again", 15, 1, "name", ("second time", "line 2")),
    ("both spellings", "  power: 100kW", "  power: 100kW\n  power_w: 1e5", 13, 3, "limits", ("power", "one of them")),
    ("unknown preset", "llama-3.1-8b", "llama-3.1-9b", 4, 12, "workloads[0].model", ("did you mean llama-3.1-8b",)),
    ("unknown server", "[hgx-h100]", "[hgx-h1000]", 10, 13, "offers.servers[0]", ("did you mean hgx-h100",)),
    ("unknown objective", "time_to_train", "time", 15, 12, "objective", ("'time'", "step_time")),
    ("wrong schema", "schema: 1", "schema: 2", 1, 9, "schema", ("2", "1")),
    ("schema as text", "schema: 1", "schema: '1'", 1, 9, "schema", ("'1'",)),
    ("no schema", "schema: 1\n", "", 1, 1, "schema", ("no 'schema'",)),
    ("no workloads", "workloads:\n  - ", "workload:\n  - ", 3, 1, "workload", ("did you mean workloads",)),
    ("list for a scalar", "name: good", "name: [good]", 2, 7, "name", ("a list", "text")),
    ("scalar for a list", "servers: [hgx-h100]", "servers: hgx-h100", 10, 12, "offers.servers", ("a list",)),
    ("text for a mapping", "plan: {tp: [1, 2]}", "plan: tp", 8, 11, "workloads[0].plan", ("mapping of fields",)),
    ("empty list of choices", "tp: [1, 2]", "tp: []", 8, 16, "workloads[0].plan.tp", ("at least 1",)),
    ("unknown choice", "tp: [1, 2]", "recompute: some", 8, 23, "workloads[0].plan.recompute", ("selective",)),
    ("pin against the rules", "tp: [1, 2]", "tp: 3", 8, 16, "workloads[0].plan.tp", ("3", "32 attention heads")),
    ("batch against a pin", "tp: [1, 2]", "dp: 7", 8, 16, "workloads[0].plan.dp", ("no multiple of dp 7",)),
    (
        "pins that exclude each other",
        "tp: [1, 2]",
        "pp: 32, virtual_stages: 4",
        8,
        11,
        "workloads[0].plan",
        ("chunks",),
    ),
    ("objective without tokens", "    tokens: 10B\n", "", 4, 5, "workloads[0]", ("no 'tokens'",)),
    (
        "nothing limits the purchase",
        "limits:\n  capex: $3M\n  power: 100kW",
        "limits: {}",
        12,
        9,
        "limits",
        ("no limit",),
    ),
    ("total cost without a deadline", "time_to_train", "total_cost", 15, 12, "objective", ("deadline",)),
    ("server without a price", "[hgx-h100]", "[dgx-a100]", 10, 13, "offers.servers[0]", ("no price", "$250k")),
    ("the same server twice", "[hgx-h100]", "[hgx-h100, hgx-h100]", 10, 23, "offers.servers[1]", ("second time",)),
    (
        "precision that is not there",
        "tokens: 10B",
        "tokens: 10B\n    precision: fp4",
        8,
        16,
        "workloads[0].precision",
        ("bf16",),
    ),
    ("tab", "  capex", "\tcapex", 13, 1, "", ("spaces, not with tabs",)),
    ("broken brackets", "{tp: [1, 2]}", "{tp: [1, 2}", 8, 0, "", ("YAML",)),
    ("anchor", "name: good", "name: &a good", 2, 7, "", ("anchor",)),
    ("tag", "name: good", "name: !!python/object:os.system good", 2, 7, "", ("tag",)),
    ("two documents", "objective", "---\nobjective", 15, 1, "", ("second document",)),
    ("key of brackets", "name: good", "? [a, b]\n: good", 2, 3, "", ("a word as a key",)),
    ("list at the top", GOOD, "- schema: 1\n", 1, 1, "", ("mapping of fields",)),
    ("a word", GOOD, "good", 1, 1, "", ("'good'", "mapping")),
    ("empty", GOOD, "", 1, 1, "", ("nothing",)),
    ("comment only", GOOD, "# nothing here\n", 0, 0, "", ("nothing",)),
]


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "instance.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return file


def refusal(file: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        solve(read(file))
    return caught.value


def test_the_good_one_is_good(tmp_path: Path) -> None:
    assert read(written(tmp_path, GOOD)).name == "good"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_one_fault_at_its_place(tmp_path: Path, case: tuple[str, str, str, int, int, str, tuple[str, ...]]) -> None:
    name, old, new, line, column, path, words = case
    assert old in GOOD
    file = written(tmp_path, GOOD.replace(old, new, 1))
    error = refusal(file)
    fault = error.faults[0] if name != "no workloads" else next(f for f in error.faults if f.path == path)
    if name not in ("no workloads",):
        assert len(error.faults) == 1, str(error)
    assert fault.file == str(file)
    if line:
        assert fault.line == line, str(error)
    if column:
        assert fault.column == column, str(error)
    assert fault.path == path
    for word in words:
        assert word in str(error), str(error)
    # No word of the libraries below.
    assert not re.search(r"pydantic|validation error|Input should|type=|<class", str(error))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_command_ends_with_2_and_tells_the_place(
    tmp_path: Path, case: tuple[str, str, str, int, int, str, tuple[str, ...]]
) -> None:
    _, old, new, line, _, _, words = case
    file = written(tmp_path, GOOD.replace(old, new, 1))
    run = CliRunner().invoke(main, ["solve", str(file)])
    assert run.exit_code == 2
    assert run.stdout == ""
    assert f"{file}:{line}" in run.stderr if line else str(file) in run.stderr
    assert "Traceback" not in run.stderr
    assert all(word in run.stderr for word in words)


BINARY: list[tuple[str, bytes, int, str]] = [
    ("random bytes", bytes(range(256)), 2, "0x80"),
    ("latin-1", GOOD.replace("good", "gr\xfcn").encode("latin-1"), 2, "UTF-8"),
    ("utf-16", GOOD.encode("utf-16"), 1, "UTF-8"),
    ("a null character", GOOD.replace("good", "go\0od").encode(), 2, "U+0000"),
    ("an escape", GOOD.replace("good", "go\x1b[31mod").encode(), 2, "U+001B"),
    ("too large", b"#" * (1 << 20) + b"\n" + GOOD.encode(), 0, "1,048,576"),
    ("too deep", ("a: " + "[" * 40 + "]" * 40).encode(), 1, "32 levels"),
    ("too many values", ("a: [" + "1," * 60_000 + "1]").encode(), 1, "50,000"),
    (
        "billion laughs",
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + GOOD.encode(),
        1,
        "anchor",
    ),
]


@pytest.mark.parametrize(("content", "line", "words"), [case[1:] for case in BINARY], ids=[case[0] for case in BINARY])
def test_what_is_no_text_of_ours(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    error = refusal(written(tmp_path, content))
    (fault,) = error.faults
    assert fault.line == (line or None), str(error)
    assert words in str(error)
    assert str(error).isprintable() or "\n" in str(error)


@pytest.mark.parametrize(("name", "words"), [("missing.yaml", "nothing of that name"), (".", "a folder"), ("a\0b", "")])
def test_what_is_no_file(tmp_path: Path, name: str, words: str) -> None:
    error = refusal(tmp_path / name)
    assert words in str(error)


def test_a_device_is_refused_and_not_read() -> None:
    assert "no regular file" in str(refusal(Path("/dev/zero")))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, GOOD)

    def denied(*arguments: object, **options: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in str(refusal(file))


def test_all_faults_of_a_file_at_once_in_its_order(tmp_path: Path) -> None:
    text = """\
schema: 3
name: many
workloads:
  - model: llama-3.1-70bb
    sequence_length: 8192.5
    global_batch: -1
    tokens: 1.5X
    precision: bf17
    framework: [megatron]
    plan: {tp: [1, 2, a], recompute: [none, selectve], ttp: 4, micro_batch: 0}
    global_batch: 12
offers:
  servers: [hgx-h100, {preset: dgx-b200, price: 30k, nics: 0}]
  fabrics: {kinds: [rail-optimized, rail-onl]}
  storage: [nvme]
inventory: {}
limits: {capex: $30MB, power: 12, deadline: 90 D}
objective: time_to_trai
assumptions: {pue: 0.5, restart: 5min}
"""
    faults = refusal(written(tmp_path, text)).faults
    assert [fault.path for fault in faults] == [
        "schema",
        "workloads[0].model",
        "workloads[0].sequence_length",
        "workloads[0].global_batch",
        "workloads[0].tokens",
        "workloads[0].precision",
        "workloads[0].framework",
        "workloads[0].plan.tp[2]",
        "workloads[0].plan.recompute[1]",
        "workloads[0].plan.ttp",
        "workloads[0].plan.micro_batch",
        "workloads[0].global_batch",
        "offers.servers[1].nics",
        "offers.fabrics.kinds[1]",
        "offers.storage[0].product",
        "inventory",
        "limits.capex",
        "limits.power",
        "limits.deadline",
        "objective",
        "assumptions.pue",
    ]
    places = [(fault.line, fault.column) for fault in faults]
    assert places == sorted(places)
