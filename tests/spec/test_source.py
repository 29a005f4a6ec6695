"""YAML text into plain data with places: scalars of YAML 1.2, duplicates, limits, and that only faults are raised."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codesign import Instance, SpecError, parse
from codesign.errors import Fault
from codesign.spec.source import Place, read_yaml

INSTANCES = Path(__file__).parents[2] / "instances"
REAL = (INSTANCES / "small" / "8b-buy-network.yaml").read_text(encoding="utf-8")


def data(text: str) -> Any:
    source = read_yaml(text.encode("utf-8"), "text")
    assert not source.faults
    return source.data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("+7", 7),
        ("-7", -7),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("12:30:00", "12:30:00"),
        ("2026-03-01", "2026-03-01"),
        ("'8'", "8"),
        ('"true"', "true"),
        ("$30M", "$30M"),
        ("1.2MW", "1.2MW"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = data(f"a: {text}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_read_as_a_number() -> None:
    assert math.isnan(data("a: .nan")["a"])


def test_the_data_is_that_of_the_document() -> None:
    assert data("a: [1, {b: c}, []]\nd: {}\ne:\n  - f\n  - g: h\n") == {
        "a": [1, {"b": "c"}, []],
        "d": {},
        "e": ["f", {"g": "h"}],
    }


def test_places_are_those_of_keys_and_values() -> None:
    source = read_yaml(b"a:\n  - b: 1\n    cc: [x,  y]\n", "text")
    assert source.keys["a",] == Place(1, 1)
    assert source.values["a", 0] == Place(2, 5)
    assert source.keys["a", 0, "cc"] == Place(3, 5)
    assert source.values["a", 0, "cc", 1] == Place(3, 14)


def test_every_value_of_a_real_document_has_its_place() -> None:
    source = read_yaml(REAL.encode("utf-8"), "text")
    lines = REAL.splitlines()
    for path, place in source.values.items():
        if path and isinstance(path[-1], str) and path in source.keys:
            key = source.keys[path]
            assert lines[key.line - 1][key.column - 1 :].startswith(str(path[-1]))
        assert 1 <= place.line <= len(lines)


def test_duplicates_are_told_each_and_the_first_value_stays() -> None:
    source = read_yaml(b"a: 1\nb: {c: 1, c: 2}\na: 3\na: {d: 4}\n", "text")
    assert [(fault.path, fault.line, fault.column) for fault in source.faults] == [
        ("b.c", 2, 11),
        ("a", 3, 1),
        ("a", 4, 1),
    ]
    assert source.data == {"a": 1, "b": {"c": 1}}
    assert source.values["a",] == Place(1, 4)


def test_a_byte_order_mark_is_no_fault() -> None:
    assert data("\ufeffa: 1") == {"a": 1}


def test_windows_lines_count_once() -> None:
    source = read_yaml(b"a: 1\r\nb: 2\r\n", "text")
    assert source.keys["b",] == Place(2, 1)


def test_quoted_keys_and_merge_keys_are_plain_keys() -> None:
    assert data('"a b": 1\n<<: {c: 2}\n') == {"a b": 1, "<<": {"c": 2}}


def refused(call: Callable[[], object]) -> tuple[Fault, ...]:
    """The faults that a call raises; any other error is one of ours."""
    try:
        call()
    except SpecError as error:
        return error.faults
    return ()


def check(content: bytes) -> None:
    """Reading ends with an instance or with faults that name the file; nothing else."""
    text = content.decode("utf-8", "replace")
    for fault in (
        *refused(lambda: parse(text, "fuzzed.yaml")),
        *refused(lambda: read_yaml(content, "fuzzed.yaml")),
    ):
        assert fault.file == "fuzzed.yaml"
        assert len(str(fault)) < 2000


@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"? ")
@example(b"a: *b")
@example(b"%YAML 3.0\n---\na")
@example(b"&")
@example(b"!")
@example(b"- - - -")
@example(b"{")
@example("a: \u2028".encode())
@settings(max_examples=400, deadline=None)
def test_any_bytes(content: bytes) -> None:
    check(content)


@given(st.integers(0, 2**32))
@settings(max_examples=250, deadline=None)
def test_mutated_instances(seed: int) -> None:
    generator = random.Random(seed)
    text = bytearray(REAL.encode("utf-8"))
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(text))
        kind = generator.randrange(4)
        if kind == 0:
            text[at] = generator.randrange(256)
        elif kind == 1:
            del text[at : at + generator.randint(1, 12)]
        elif kind == 2:
            text[at:at] = generator.choice(
                [b"[", b"]", b"{", b"}", b": ", b"- ", b"\n", b"  ", b"$", b"-1", b"1e9", b"~", b'"']
            )
        else:
            other = generator.randrange(len(text))
            text[at:at] = text[other : other + generator.randint(1, 40)]
    check(bytes(text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TOP = ("schema", "name", "workloads", "offers", "inventory", "limits", "objective", "assumptions")
OF_THE_WORKLOAD = ("model", "plan", "plan.tp", "tokens", "global_batch", "sequence_length")
FIELDS = st.sampled_from(
    [
        *TOP,
        *(f"workloads.0.{field}" for field in OF_THE_WORKLOAD),
        *("offers.servers", "offers.servers.0", "offers.fabrics", "offers.storage", "limits.capex", "limits.gpus"),
    ]
)


@given(FIELDS, VALUES)
@settings(max_examples=400, deadline=None)
def test_any_value_of_a_field(field: str, value: Any) -> None:
    """Whatever stands in a field, as JSON would say it: an instance or faults."""
    document = read_yaml(REAL.encode("utf-8"), "text").data
    inside = document
    *above, last = [int(part) if part.isdigit() else part for part in field.split(".")]
    for part in above:
        inside = inside[part]
    inside[last] = value
    for fault in refused(lambda: Instance.from_document(document)):
        assert len(str(fault)) < 2000


def test_a_faulty_word_stays_short_and_safe() -> None:
    with pytest.raises(SpecError) as caught:
        parse("schema: 1\nname: x\nobjective: '" + "y" * 5000 + "'\n", "text")
    assert len(str(caught.value)) < 1500
    with pytest.raises(SpecError) as caught:
        parse('schema: 1\nname: x\nobjective: "\\e[31m\\u202e\\a"\n', "text")
    assert all(line.isprintable() for line in str(caught.value).splitlines())
