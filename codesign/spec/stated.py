"""What all models of an instance share: strict frozen fields, quantities with units, presets by name. Floor 1.

A quantity is written in one of two ways, and never by a bare number whose unit must be guessed:

- under the name of the field without its unit, with a unit in the value: `memory: 80GB`, `capex: $30M`;
- under the full name of the field, as a bare SI number: `memory_bytes: 80e9` (how solution files hold it).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from codesign import catalogue
from codesign.units import EXAMPLES, QuantityError, quantity

SUFFIXES = ("_usd_per_joule", "_bytes_per_s", "_bytes", "_usd", "_w", "_s")
BARE = ("count", "money", "share")
"""Dimensions whose bare numbers can mean one thing only."""

PRESET = "preset"


def alias(field: str) -> str:
    """The name under which a field takes a quantity with a unit."""
    return next((field.removesuffix(suffix) for suffix in SUFFIXES if field.endswith(suffix)), field)


class Written(str):
    """A bare number that stands under a name without a unit: text, so that the unit is missed."""


def refused(found: str, expected: str, hint: str = "") -> PydanticCustomError:
    """A fault from inside a validator; `found` empty means the value as it stands."""
    return PydanticCustomError("codesign", "{expected}", {"found": found, "expected": expected, "hint": hint})


class Stated(BaseModel):
    """Base of all models of an instance."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=True,
        alias_generator=alias,
        validate_default=False,
        hide_input_in_errors=True,
        regex_engine="python-re",
    )

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, data: Any) -> Any:
        return named(cls, data) if isinstance(data, Mapping) else data


def named(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with the full names of fields; what stands twice, under both names, is refused."""
    full = {info.alias: name for name, info in model.model_fields.items() if info.alias not in (None, name)}
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = full.get(key, key)
        if name in found:
            raise refused(f"both '{key}' and '{name}'", "one of them")
        bare = key == alias(name) != name and isinstance(value, int | float) and not isinstance(value, bool)
        found[name] = Written(value) if bare else value
    return found


def _parsed(dimension: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if isinstance(value, Written) and dimension in BARE:
            return float(value)
        if isinstance(value, str):
            try:
                return quantity(value, dimension)
            except QuantityError as problem:
                raise refused(_bare(value), problem.expected, problem.hint) from None
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise refused("", "a number that a double can hold") from None
        if not isinstance(value, float):
            raise refused("", f"a quantity such as {EXAMPLES[dimension]}")
        return value

    return parse


def _bare(value: str) -> str:
    return str(value) if isinstance(value, Written) else f"'{value}'"


def _shown(dimension: str) -> WithJsonSchema:
    types = ["string", "number"] if dimension in BARE else "string"
    return WithJsonSchema({"type": types, "description": f"such as {EXAMPLES[dimension]}"})


Bytes = Annotated[float, BeforeValidator(_parsed("size")), Field(ge=0, le=1e24), _shown("size")]
BytesPerS = Annotated[float, BeforeValidator(_parsed("bandwidth")), Field(gt=0, le=1e40), _shown("bandwidth")]
Seconds = Annotated[float, BeforeValidator(_parsed("time")), Field(ge=0, le=1e12), _shown("time")]
Watts = Annotated[float, BeforeValidator(_parsed("power")), Field(ge=0, le=1e15), _shown("power")]
Usd = Annotated[float, BeforeValidator(_parsed("money")), Field(ge=0, le=1e15), _shown("money")]
UsdPerJoule = Annotated[float, BeforeValidator(_parsed("energy price")), Field(ge=0, le=1.0), _shown("energy price")]
FlopPerS = Annotated[float, BeforeValidator(_parsed("compute")), Field(gt=0, le=1e24), _shown("compute")]
Tokens = Annotated[float, BeforeValidator(_parsed("count")), Field(gt=0, le=1e18), _shown("count")]
Share = Annotated[float, BeforeValidator(_parsed("share")), Field(ge=0, le=1), _shown("share")]

Name = Annotated[str, Field(min_length=1, max_length=100)]


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return value if value is None or isinstance(value, tuple | Mapping) else (value,)


class _OneOrList:
    """In the JSON Schema: one value may stand for a list of it."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core)
        return {"anyOf": [schema.get("items", {}), {**schema, "minItems": 1}]}


Item = TypeVar("Item")
Listed = Annotated[tuple[Item, ...], BeforeValidator(_listed), Field(max_length=1000)]
"""A list."""
OneOrMore = Annotated[
    tuple[Item, ...],
    BeforeValidator(_one_or_more),
    _OneOrList(),
    Field(min_length=1, max_length=1000),
]
"""One value, or a list of allowed ones."""


def whole(least: int, most: int) -> Any:
    """Bounds of a whole number: `Annotated[int, whole(1, 8)]`."""
    return Field(ge=least, le=most)


def preset(section: str, model: type[BaseModel], value: Any) -> Any:
    """The mapping of a catalogue record for its name, or for `{preset: name, ...}` with some of its fields replaced."""
    if isinstance(value, str):
        return record(section, value)
    if isinstance(value, Mapping) and PRESET in value:
        name = value[PRESET]
        if not isinstance(name, str):
            raise refused(f"preset: {name!r}", f"the name of a record of {section}")
        replaced = named(model, {key: each for key, each in value.items() if key != PRESET})
        return record(section, name) | replaced
    return value


def record(section: str, name: str) -> dict[str, Any]:
    """Plain SI values of a catalogue record; a fault that names what looks alike if there is none."""
    known = catalogue.load()
    try:
        return known.values(section, name)
    except catalogue.UnknownNameError as problem:
        hint = f"did you mean {' or '.join(problem.close)}?" if problem.close else f"known are {listing(problem.known)}"
        raise refused(f"'{clipped(name)}'", f"a name from the catalogue of {section}", hint) from None


def listing(names: Sequence[str], most: int = 12) -> str:
    """Names in a row, cut where they are many."""
    tail = f" and {len(names) - most} more (see 'codesign catalogue')" if len(names) > most else ""
    return ", ".join(names[:most]) + tail


def clipped(text: str, most: int = 60) -> str:
    """Text cut to a length that a message can hold, on one line."""
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= most else text[: most - 3] + "..."


def close(name: str, known: Sequence[str]) -> str:
    """A hint about a name that looks alike; else the known ones."""
    found = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else f"known are {listing(list(known), 20)}"
