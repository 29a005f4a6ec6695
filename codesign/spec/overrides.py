"""`--set path=value`: fields of an instance replaced before it is checked. Floor 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from codesign.errors import Fault, SpecError
from codesign.spec.source import Source, read_scalar
from codesign.spec.stated import alias, clipped

OF_THE_WORKLOAD = (
    "plan",
    "model",
    "sequence_length",
    "global_batch",
    "tokens",
    "precision",
    "framework",
)
"""First words of a path that mean the (first) workload: `plan.tp=8` is `workloads[0].plan.tp=8`."""

_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d{1,6})\]|\.(\d{1,6})(?![\w-])")


def apply(source: Source, overrides: Sequence[str]) -> None:
    """Put values into the data of a source; raises `SpecError` for text that is no override of it."""
    for text in overrides:
        path, value = parsed(text)
        _put(source, path, value, text)


def parsed(text: str) -> tuple[tuple[str | int, ...], Any]:
    """Path and value of one override. SpecError if it is not of the form path=value."""
    left, equals, right = text.partition("=")
    path = _path(left.strip())
    if not equals or not path:
        raise _refused(text, f"'{clipped(text)}'", "path=value, such as limits.capex=$40M or plan.tp=8")
    if path[0] in OF_THE_WORKLOAD:
        path = ("workloads", 0, *path)
    return path, read_scalar(right, f"--set {clipped(text)}")


def _path(text: str) -> tuple[str | int, ...]:
    found: list[str | int] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return ()
        name, index, dotted = part.groups()
        found.append(name if name is not None else int(index or dotted))
        at = part.end()
    return tuple(found)


def _put(source: Source, path: tuple[str | int, ...], value: Any, text: str) -> None:
    inside = source.data
    written: list[str | int] = []
    for depth, part in enumerate(path):
        last = depth + 1 == len(path)
        if isinstance(inside, dict) and isinstance(part, str):
            name = _as_written(inside, part)
            if last:
                # The other spelling of the field, with or without its unit, gives way.
                inside.pop(name, None)
                inside[part] = value
                source.replaced[(*written, part)] = f"--set {clipped(text)}"
                return
            if inside.get(name) is None:
                inside[name] = {}
            inside = inside[name]
            written.append(name)
        elif isinstance(inside, list) and isinstance(part, int) and part < len(inside):
            if last:
                inside[part] = value
                source.replaced[(*written, part)] = f"--set {clipped(text)}"
                return
            inside = inside[part]
            written.append(part)
        else:
            where = ".".join(str(each) for each in path[:depth]) or "the instance"
            raise _refused(text, f"no '{part}' in {where}", "a path to a field of the instance")


def _as_written(inside: dict[str, Any], part: str) -> str:
    if part in inside:
        return part
    return next((key for key in inside if alias(key) == part or key == alias(part)), part)


def _refused(text: str, found: str, expected: str) -> SpecError:
    return SpecError((Fault(f"--set {clipped(text)}", found, expected),))
