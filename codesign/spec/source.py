"""YAML text -> plain data with the place of every value. Floor 1. In: bytes of a file. Out: a `Source`, or faults.

Read from the events of the parser, so that nesting costs no stack and nothing is built before it was checked. Scalars
are those of the YAML 1.2 core schema: `no` is a word and `1_000` is text. Duplicate keys, anchors, aliases, tags and a
second document are refused: an instance says each thing once, where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from codesign.errors import Fault, SpecError

MOST_BYTES = 1 << 20
MOST_NODES = 50_000
DEEPEST = 32

Path = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NAMED = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{f"{sign}{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_LONGEST_NUMBER = 400  # no double needs more; an integer of a million digits takes seconds to convert


@dataclass(frozen=True)
class Place:
    """Line and column, from 1."""

    line: int
    column: int


@dataclass
class Source:
    """Plain data of a document, and where each key and value of it stands.

    `values` and `keys` map a path, such as `("workloads", 0, "plan")`, to the place of its value or its key; `replaced`
    has the paths whose values do not stand in the file, with what replaced them.
    """

    name: str
    data: Any = None
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    replaced: dict[Path, str] = field(default_factory=dict)

    def fault(self, path: Path, found: str, expected: str, hint: str = "", at_key: bool = False) -> Fault:
        """A fault at the place of a path, or of the nearest path above it that stands in the file."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.replaced:
                return Fault(spelt(path), found, expected, hint, self.replaced[path[:depth]])
        place = (self.keys.get(path) if at_key else None) or self.values.get(path)
        above = path
        while place is None and above:
            above = above[:-1]
            place = self.values.get(above)
        line, column = (None, None) if place is None else (place.line, place.column)
        return Fault(spelt(path), found, expected, hint, self.name, line, column)


def spelt(path: Sequence[str | int]) -> str:
    """A path as people write it: `workloads[0].plan.tp`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def read_yaml(content: bytes, name: str) -> Source:
    """Plain data of a YAML document; duplicate keys are left in `faults` so that the rest can be checked too.

    Raises
    ------
    SpecError
        If it is not a YAML document of the kind described above.
    """
    if len(content) > MOST_BYTES:
        raise _refused(name, f"{len(content):,} bytes", f"at most {MOST_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise _refused(name, f"byte 0x{content[problem.start]:02x}", "text in UTF-8", line=line) from None
    source = Source(name)
    try:
        _Builder(source).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise _refused(
            name,
            " ".join(str(problem.problem or "a fault of syntax").split()),
            "YAML",
            _advice(text, mark),
            line=None if mark is None else mark.line + 1,
            column=None if mark is None else mark.column + 1,
        ) from None
    except yaml.reader.ReaderError as problem:
        before = text[: problem.position] if isinstance(problem.position, int) else ""
        raise _refused(
            name,
            f"the character U+{ord(chr(problem.character)) if isinstance(problem.character, int) else 0:04X}",
            "printable text",
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
        ) from None
    return source


def read_scalar(text: str, name: str) -> Any:
    """The value in `--set path=value`: a YAML scalar or a flow such as `[1, 2]`."""
    source = read_yaml(text.encode("utf-8"), name)
    if source.faults:
        raise SpecError(source.faults)
    return source.data


def _refused(
    name: str, found: str, expected: str, hint: str = "", line: int | None = None, column: int | None = None
) -> SpecError:
    return SpecError((Fault("", found, expected, hint, name, line, column),))


def _advice(text: str, mark: Any) -> str:
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]:
        return "YAML indents with spaces, not with tabs"
    return ""


class _Builder:
    """Builds data from parser events with a stack of its own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._nodes = 0

    def build(self, events: Iterator[Any]) -> None:
        documents = 0
        stack: list[_Open] = []
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refusal(event, "a second document", "one document in a file", "split the file")
            elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise self._refusal(
                    event,
                    "an anchor or alias",
                    "each value written out",
                    "repeat the value where it is needed",
                )
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                stack.pop()
            elif isinstance(event, yaml.NodeEvent):
                self._count(event, len(stack))
                self._node(event, stack)
        if not documents:
            raise _refused(self._source.name, "nothing", "an instance", "an instance begins with 'schema: 1'", 1, 1)

    def _count(self, event: Any, depth: int) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._refusal(event, f"more than {MOST_NODES:,} values", f"at most {MOST_NODES:,}")
        if depth > DEEPEST:
            raise self._refusal(event, f"more than {DEEPEST} levels", f"at most {DEEPEST} levels of nesting")
        if getattr(event, "tag", None) not in (None, "!") and getattr(event, "implicit", (True,)) is not True:
            raise self._refusal(event, f"the tag {event.tag}", "plain values without tags")

    def _node(self, event: Any, stack: list[_Open]) -> None:
        place = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        parent = stack[-1] if stack else None
        if parent is not None and parent.wants_key:
            parent.take_key(self._key(event), place, self._source)
            return
        path = parent.next_path() if parent is not None else ()
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        else:
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        if parent is None:
            self._source.data = value
            self._source.values[path] = place
        else:
            parent.add(value, place, self._source)
        if not isinstance(event, yaml.ScalarEvent):
            stack.append(_Open(path, value))

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise self._refusal(event, "a list or mapping as a key", "a word as a key")
        return str(event.value)

    def _scalar(self, event: Any) -> Any:
        text = event.value
        if event.style is not None:
            return text
        if text in _NAMED:
            return _NAMED[text]
        number = _INTEGER.fullmatch(text) or _OTHER_BASE.fullmatch(text) or _FLOAT.fullmatch(text)
        if number is None:
            return text
        if len(text) > _LONGEST_NUMBER:
            raise self._refusal(event, f"a number of {len(text):,} digits", "a number that a double can hold")
        if _INTEGER.fullmatch(text):
            return int(text)
        return int(text, 0) if _OTHER_BASE.fullmatch(text) else float(text)

    def _refusal(self, event: Any, found: str, expected: str, hint: str = "") -> SpecError:
        mark = event.start_mark
        return _refused(self._source.name, found, expected, hint, mark.line + 1, mark.column + 1)


class _Open:
    """A mapping or list that is being filled."""

    def __init__(self, path: Path, value: Any) -> None:
        self.path, self._value = path, value
        self._key: str | None = None
        self._twice = False

    @property
    def wants_key(self) -> bool:
        return isinstance(self._value, dict) and self._key is None

    def take_key(self, key: str, place: Place, source: Source) -> None:
        self._key, self._twice = key, key in self._value
        if self._twice:
            first = source.keys[(*self.path, key)]
            source.faults.append(
                Fault(
                    spelt((*self.path, key)),
                    f"the key '{_clipped(key)}' a second time",
                    "each key once",
                    f"it stands first in line {first.line}",
                    source.name,
                    place.line,
                    place.column,
                )
            )
        else:
            source.keys.setdefault((*self.path, key), place)

    def next_path(self) -> Path:
        return (*self.path, self._key if self._key is not None else len(self._value))

    def add(self, value: Any, place: Place, source: Source) -> None:
        path = self.next_path()
        if self._key is None:
            self._value.append(value)
            source.values.setdefault(path, place)
        else:
            if not self._twice:
                self._value[self._key] = value
                source.values.setdefault(path, place)
            self._key = None


def _clipped(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
