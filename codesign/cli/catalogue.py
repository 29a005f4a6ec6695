"""`codesign catalogue`: the figures and where they come from. Floor 7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from codesign.cli.output import DONE, command, emit, json_option, show, unicode_out, verbose_option, width

if TYPE_CHECKING:
    from codesign.catalogue import Catalogue, Figure


@click.command(short_help="List the catalogue, or show one record with the source of each figure.")
@click.argument("section", required=False)
@click.argument("name", required=False)
@json_option
@verbose_option
@command
def catalogue(section: str | None, name: str | None, as_json: bool, verbose: bool) -> int:
    """Show what the catalogue knows: its sections, the names of a SECTION, or the figures of one NAME in it.

    Each figure has its unit, its source and date, and the range where sources differ. A figure marked "recalled" was
    written from memory, and no source of it was seen: replace it in your instance by one that you know.
    """
    from codesign.catalogue import load
    from codesign.report.layout import plain

    known = load()
    if section is None:
        document, lines = _sections(known)
    elif name is None:
        document, lines = _names(known, section)
    else:
        document, lines = _record(known, section, name, width())
    if as_json:
        emit(document)
    else:
        text = "\n".join(lines)
        show(text if unicode_out() else plain(text))
    return DONE


def _sections(known: Catalogue) -> tuple[dict[str, Any], list[str]]:
    from codesign.catalogue import SECTIONS
    from codesign.report.layout import columns

    names = {section: known.names(section) for section in SECTIONS}
    figures = list(known.figures())
    rows = [
        [
            section,
            f"{len(names[section])} records",
            f"{sum(1 for one in figures if one[0] == section)} figures",
            f"{sum(1 for one in figures if one[0] == section and one[3].recalled)} recalled",
        ]
        for section in SECTIONS
    ]
    document = {
        "schema": 1,
        "sections": {
            section: {
                "names": list(names[section]),
                "figures": int(row[2].split()[0]),
                "recalled": int(row[3].split()[0]),
            }
            for section, row in zip(SECTIONS, rows, strict=True)
        },
    }
    return document, columns(rows, "lrrr", indent="")


def _names(known: Catalogue, section: str) -> tuple[dict[str, Any], list[str]]:
    from codesign.report.layout import columns

    rows, records = [], {}
    for name in known.names(section):
        record = known.record(section, name)
        recalled = sum(1 for figure in record.values() if figure.recalled)
        records[name] = {"figures": len(record), "recalled": recalled}
        rows.append([name, f"{len(record)} figures", f"{recalled} recalled" if recalled else ""])
    return {"schema": 1, "section": section, "records": records}, columns(rows, "lrr", indent="")


def _record(known: Catalogue, section: str, name: str, most: int) -> tuple[dict[str, Any], list[str]]:
    from codesign.report.layout import columns, wrapped

    record = known.record(section, name)
    keys = dict.fromkeys(figure.source for figure in record.values())
    rows = [
        [
            path,
            _value(figure.value),
            figure.unit or "",
            "" if figure.low is None else f"{_value(figure.low)} to {_value(figure.high)}",
            figure.source,
            figure.date,
            "recalled" if figure.recalled else "",
        ]
        for path, figure in record.items()
    ]
    lines = [f"{section} · {name}", *columns(rows, "lrlrlll")]
    notes = [(path, figure.note) for path, figure in record.items() if figure.note]
    if notes:
        lines += ["", "Notes"]
        lines += [line for path, note in notes for line in wrapped(f"{path}: {note}", most, first="  - ")]
    lines += ["", "Sources"]
    for key in keys:
        source = known.source(key)
        lines += wrapped(f"{key}: {source.seen_at} ({source.kind}, {source.date})", most, first="  - ")
    document = {
        "schema": 1,
        "section": section,
        "name": name,
        "figures": {path: _figure(figure) for path, figure in record.items()},
        "sources": {
            key: {"seen_at": source.seen_at, "kind": source.kind, "date": source.date}
            for key in keys
            for source in (known.source(key),)
        },
    }
    return document, lines


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "unit": figure.unit,
        "si": figure.si,
        "range": None if figure.low is None else [figure.low, figure.high],
        "source": figure.source,
        "date": figure.date,
        "recalled": figure.recalled,
        "note": figure.note,
    }


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
