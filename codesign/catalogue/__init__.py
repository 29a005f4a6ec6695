"""Figures about hardware, models and practice, every one with its source. Floor 0.

In: the YAML files beside this module. Out: a frozen `Catalogue`; `values` gives plain SI values under the
field names of the typed objects of `codesign.spec`, `record` the same figures as they were stated, with unit,
source, date and range.

A file is one section. It maps a name to fields, a field to a figure or, for `efficiency`, `ports` and others,
to a mapping of figures:

    peak_flops:
      bf16: {value: 989, unit: TFLOP/s, source: tts, date: 2026-02, range: [900, 1000], note: dense}

Only `value` and `source` are required; a figure without a date has that of its source. `recalled: true` marks
what no source was seen for, so that a report can list it. A figure without a unit is a count, a share, a name
or a truth value. Section `assumptions` holds the one record `default`. A field that is not known is left out,
never guessed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

import yaml

SECTIONS = ("gpus", "servers", "nics", "switches", "links", "storage", "models", "assumptions", "software")
REFERENCES = {("servers", "gpu"): "gpus"}  # fields that name a record of another section

# SI value of one of each unit. Not the parser of user quantities: these files spell a unit in one way only.
UNITS: Mapping[str, Decimal] = {
    unit: Decimal(factor)
    for unit, factor in {
        "TFLOP/s": "1e12",
        "B": "1",
        "GB": "1e9",
        "TB": "1e12",
        "PB": "1e15",
        "GB/s": "1e9",
        "TB/s": "1e12",
        "Gb/s": "1.25e8",
        "s": "1",
        "ms": "1e-3",
        "us": "1e-6",
        "ns": "1e-9",
        "year": "31557600",  # Julian year, 365.25 days
        "W": "1",
        "kW": "1e3",
        "USD": "1",
        "USD/kWh": str(Decimal(1) / Decimal(3_600_000)),
        "GPU-h": "1",  # kept in GPU-hours, as the field name says
    }.items()
}

_FIGURE_KEYS = frozenset({"value", "unit", "source", "date", "recalled", "range", "note"})
_DATE = re.compile(r"(19|20)\d\d(-(0[1-9]|1[0-2]))?")


class CatalogueError(ValueError):
    """A fault in the catalogue's own files."""


class UnknownNameError(LookupError):
    """A section, record or source that the catalogue does not have; `close` lists names that look alike."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...]) -> None:
        self.kind, self.name, self.known = kind, name, known
        self.close = tuple(difflib.get_close_matches(name, known, n=3, cutoff=0.5))
        super().__init__(
            f"the catalogue has no {kind} named {name!r}; "
            + (f"did you mean {', '.join(self.close)}?" if self.close else f"it has {', '.join(known)}")
        )


@dataclass(frozen=True)
class Source:
    """Where figures were seen: an address or document, how far to trust it, and its date."""

    key: str
    seen_at: str
    kind: str
    date: str


@dataclass(frozen=True)
class Figure:
    """One figure as stated: `value`, `low` and `high` in `unit`; `si` converts."""

    value: float | int | bool | str
    unit: str | None
    source: str
    date: str
    recalled: bool = False
    low: float | None = None
    high: float | None = None
    note: str | None = None

    @property
    def si(self) -> float | int | bool | str:
        """The value in SI units (bytes, seconds, watts, FLOP/s, USD); as it stands where there is no unit."""
        return self.value if self.unit is None or isinstance(self.value, str) else _scaled(self.value, self.unit)

    @property
    def si_range(self) -> tuple[float, float] | None:
        """Lowest and highest stated value in SI units, None where the source gives one value only."""
        if self.low is None or self.high is None:
            return None
        if self.unit is None:
            return self.low, self.high
        return _scaled(self.low, self.unit), _scaled(self.high, self.unit)


@dataclass(frozen=True)
class Catalogue:
    """All sections. Records keep figures under dotted paths, such as `efficiency.matmul_ceiling`."""

    _records: Mapping[str, Mapping[str, Mapping[str, Figure]]]
    _sources: Mapping[str, Source]

    def names(self, section: str) -> tuple[str, ...]:
        """Names of the records of a section, in the order of the file."""
        return tuple(self._section(section))

    def record(self, section: str, name: str) -> dict[str, Figure]:
        """Figures of one record by dotted path."""
        return dict(self._record(section, name))

    def values(self, section: str, name: str) -> dict[str, Any]:
        """Plain SI values of one record, nested as its typed object is; with `name`, but for assumptions."""
        plain: dict[str, Any] = {} if section == "assumptions" else {"name": name}
        for path, figure in self._record(section, name).items():
            outer, _, inner = path.partition(".")
            if inner:
                plain.setdefault(outer, {})[inner] = figure.si
            else:
                plain[outer] = figure.si
        return plain

    def source(self, key: str) -> Source:
        """The source that a figure names."""
        if key not in self._sources:
            raise UnknownNameError("source", key, tuple(self._sources))
        return self._sources[key]

    def sources(self) -> tuple[Source, ...]:
        """All sources, in the order of the file."""
        return tuple(self._sources.values())

    def figures(self) -> Iterator[tuple[str, str, str, Figure]]:
        """Every figure with its section, record and path."""
        for section, records in self._records.items():
            for name, record in records.items():
                for path, figure in record.items():
                    yield section, name, path, figure

    def _section(self, section: str) -> Mapping[str, Mapping[str, Figure]]:
        if section not in self._records:
            raise UnknownNameError("section", section, tuple(self._records))
        return self._records[section]

    def _record(self, section: str, name: str) -> Mapping[str, Figure]:
        records = self._section(section)
        if name not in records:
            raise UnknownNameError(f"record of {section}", name, tuple(records))
        return records[name]


@cache
def load() -> Catalogue:
    """Read and check the catalogue; the same object on every call.

    Raises
    ------
    CatalogueError
        When a file breaks the rules above; the message names section, record, field and fault.
    """
    return build({section: _read(section) for section in SECTIONS}, _read("sources"))


def build(sections: Mapping[str, Any], sources: Mapping[str, Any]) -> Catalogue:
    """Check parsed sections against parsed sources and freeze them. Raises `CatalogueError`."""
    seen: dict[str, Source] = {}
    for key, entry in sources.items():
        if not isinstance(entry, dict) or set(entry) != {"seen_at", "kind", "date"}:
            raise CatalogueError(f"sources.{key}: expected the keys seen_at, kind and date, found {entry!r}")
        seen[key] = Source(key, str(entry["seen_at"]), str(entry["kind"]), _date(entry["date"], f"sources.{key}"))
    records = {
        section: {name: dict(_figures(entry, seen, f"{section}.{name}", "")) for name, entry in (body or {}).items()}
        for section, body in sections.items()
    }
    for (section, field), target in REFERENCES.items():
        for name, record in records.get(section, {}).items():
            if field not in record or record[field].value not in records.get(target, {}):
                raise CatalogueError(f"{section}.{name}.{field}: expected the name of a record of {target}")
    return Catalogue(records, seen)


def _read(section: str) -> dict[str, Any]:
    text = resources.files(__name__).joinpath(f"{section}.yaml").read_text(encoding="utf-8")
    # libyaml's parser, five times as fast as the pure one
    return dict(yaml.load(text, Loader=yaml.CSafeLoader))


def _figures(entry: Any, sources: Mapping[str, Source], place: str, prefix: str) -> Iterator[tuple[str, Figure]]:
    """Figures of one record by path; one level of nesting."""
    if not isinstance(entry, dict) or not entry:
        raise CatalogueError(f"{place}: expected a mapping of figures, found {entry!r}")
    for field, body in entry.items():
        path = f"{prefix}{field}"
        if isinstance(body, dict) and "value" not in body and not prefix:
            yield from _figures(body, sources, place, f"{path}.")
        else:
            yield path, _figure(body, sources, f"{place}.{path}")


def _figure(body: Any, sources: Mapping[str, Source], place: str) -> Figure:
    if not isinstance(body, dict) or not {"value", "source"} <= set(body) or set(body) - _FIGURE_KEYS:
        raise CatalogueError(
            f"{place}: expected value and source, and no key but {sorted(_FIGURE_KEYS)}; found {body!r}"
        )
    value, unit, source, bounds = body["value"], body.get("unit"), body["source"], body.get("range")
    if source not in sources:
        raise CatalogueError(f"{place}: no source named {source!r} in sources.yaml")
    if not isinstance(value, int | float | str):
        raise CatalogueError(f"{place}: expected a number, a name or a truth value, found {value!r}")
    if unit is not None and (unit not in UNITS or not _is_number(value)):
        # YAML 1.1 reads 1e9 and 1.0e9 as text, which would land here too
        raise CatalogueError(f"{place}: expected a number in one of {', '.join(UNITS)}; found {value!r} {unit!r}")
    if bounds is not None and not _is_range(bounds, value):
        raise CatalogueError(f"{place}: expected a range [low, high] around {value!r}, found {bounds!r}")
    low, high = bounds or (None, None)
    note, recalled = body.get("note"), body.get("recalled", False)
    if not isinstance(recalled, bool) or not (note is None or isinstance(note, str)):
        raise CatalogueError(f"{place}: expected recalled as true or false and note as text, found {body!r}")
    date = _date(body.get("date", sources[source].date), place)
    return Figure(value, unit, source, date, recalled, low, high, note)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(bounds: object, value: object) -> bool:
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, [*bounds, value])):
        return False
    low, high = bounds
    return bool(low <= value <= high)


def _date(value: object, place: str) -> str:
    if not _DATE.fullmatch(str(value)):
        raise CatalogueError(f"{place}: expected a date as 2026-03 or 2026, found {value!r}")
    return str(value)


def _scaled(value: float, unit: str) -> float:
    # decimal, so that 3.35 TB/s is 3.35e12 and not a neighbour of it
    return float(Decimal(str(value)) * UNITS[unit])
