"""Errors of pydantic -> faults for people, each at its place in the file. Floor 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from codesign.errors import Fault
from codesign.spec.source import Path, Source
from codesign.spec.stated import Written, clipped, close

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of names to values",
    "mapping_type": "a mapping of names to values",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "finite_number": "a finite number",
    "string_too_short": "text that is not empty",
    "int_parsing_size": "a number of reasonable size",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def faults_of(problem: ValidationError, root: type[BaseModel], source: Source) -> Iterator[Fault]:
    """One fault for each error, in the order of the file where it has one."""
    for error in problem.errors(include_url=False):
        yield _fault(error, root, source)


def _fault(error: ErrorDetails, root: type[BaseModel], source: Source) -> Fault:
    path, model = _walk(error["loc"], root, source.data)
    kind, context = error["type"], error.get("ctx", {})
    value = _at(path, source.data)
    found = shown(value)
    if kind == "codesign":
        return source.fault(path, context["found"] or found, context["expected"], context["hint"])
    if kind == "missing":
        parent, name = path[:-1], str(path[-1])
        return source.fault(path, f"no '{name}'", f"a value for it{_in(parent)}")
    if kind == "extra_forbidden":
        known = [info.alias or name for name, info in model.model_fields.items()] if model is not None else []
        return source.fault(
            path,
            f"'{clipped(str(path[-1]))}'",
            "a field that is known here",
            close(str(path[-1]), known),
            True,
        )
    if kind == "literal_error":
        choices = str(context.get("expected", "")).replace("'", "")
        hint = close(value, choices.replace(" or ", ", ").split(", ")) if isinstance(value, str) else ""
        return source.fault(path, found, f"one of {choices}", hint if hint.startswith("did") else "")
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        unit = _unit(error["loc"], model)
        return source.fault(
            path,
            found,
            f"{words} {bound:g}{unit}" if abs(bound) >= 1e6 or bound != int(bound) else f"{words} {int(bound)}{unit}",
        )
    if kind in ("too_short", "too_long"):
        least = context.get("min_length")
        return source.fault(
            path,
            found,
            f"at least {least} entry" if least else f"at most {context.get('max_length')} entries",
        )
    if kind == "string_too_long":
        return source.fault(path, found, f"text of at most {context['max_length']} characters")
    if kind == "string_pattern_mismatch":
        return source.fault(path, found, "a name of letters, digits, dots, dashes and underscores")
    return source.fault(path, found, _TYPES.get(kind, clipped(error["msg"], 200)))


def spelling(path: Path, root: type[BaseModel], data: Any) -> Path:
    """A path by names of fields, as the file spells them."""
    return _walk(path, root, data)[0]


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Written) or isinstance(value, int | float):
        text = (
            str(value)
            if not isinstance(value, int) or abs(value) < 10**40
            else f"a number of {len(hex(value))} hex digits"
        )
        return clipped(text)
    if isinstance(value, str):
        return f"'{clipped(value)}'"
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return clipped(str(value))


def _walk(location: tuple[str | int, ...], root: type[BaseModel], data: Any) -> tuple[Path, type[BaseModel] | None]:
    """The path in the file of a location in the models, and the model that its last field belongs to."""
    path: list[str | int] = []
    holder: type[BaseModel] | None = root
    annotation: Any = root
    for part in location:
        if isinstance(part, str) and part == "[key]":
            continue
        holder = _model_in(annotation) if isinstance(part, str) else holder
        if isinstance(part, str) and holder is not None:
            name = next((n for n, info in holder.model_fields.items() if part in (n, info.alias)), part)
            shorter = holder.model_fields[name].alias or name if name in holder.model_fields else part
            written = _spelling((part, name, shorter), _at(tuple(path), data))
            annotation = holder.model_fields[name].annotation if name in holder.model_fields else None
            path.append(written)
            if annotation is None:
                return tuple(path), holder
            extra = holder.model_fields[name].metadata
            annotation = (annotation, *extra)
        else:
            inside = _at(tuple(path), data)
            # One value where a list may stand: its only element is the value itself.
            if not (isinstance(part, int) and not isinstance(inside, list | tuple)):
                path.append(part)
    return tuple(path), holder


def _spelling(candidates: Sequence[str], inside: Any) -> str:
    """How the file spells a field: in full, without its unit, or not at all."""
    known = inside if isinstance(inside, Mapping) else {}
    return next((each for each in candidates if each in known), candidates[-1])


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model inside an annotation, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = annotation if isinstance(annotation, tuple) else get_args(annotation)
    for part in parts:
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _at(path: Path, data: Any) -> Any:
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part) if isinstance(part, str) else None
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _in(parent: Path) -> str:
    return f" in {parent[-1]}" if parent and isinstance(parent[-1], str) else ""


def _unit(location: tuple[str | int, ...], model: type[BaseModel] | None) -> str:
    """SI unit of a bounded field, from the suffix of its full name."""
    units = {"_bytes_per_s": " bytes/s", "_bytes": " bytes", "_usd": " USD", "_w": " W", "_s": " s"}
    if model is None or not isinstance(location[-1], str):
        return ""
    name = next((n for n, info in model.model_fields.items() if location[-1] in (n, info.alias)), "")
    return next((unit for suffix, unit in units.items() if name.endswith(suffix)), "")
