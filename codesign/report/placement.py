"""A picture of a placement in text: one server as a row of GPUs, then leaf groups and the cluster in counts. Floor 6.

In: plan, placement, the server's name and size. Out: lines. One server stands for all, since a regular placement
repeats it; a domain that is too wide to draw is drawn as one of its groups and the number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from codesign.design import DIMENSIONS, Placement, Plan, Purchase
from codesign.report.layout import columns, wrapped

WORDS = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "pp": "pipeline parallel",
    "dp": "data parallel",
}

_LABEL = 6
"""Columns left of the picture: indent and the name of a dimension."""


def picture(plan: Plan, placement: Placement, purchase: Purchase, gpus: int, width: int) -> list[str]:
    """Lines of the picture, the table of spans below it."""
    lines = [*_server(placement, purchase.server, gpus, width), ""]
    lines += _tiers(placement, purchase, width)
    rows = [["", "", "ranks", "in one server", "in one leaf group", "across"]]
    for dimension in DIMENSIONS:
        layout = placement.layout(dimension)
        if plan.degree(dimension) > 1:
            nouns = ("GPUs", "servers", "leaf groups")
            spans = (f"{each} {noun}" if each > 1 else "·" for each, noun in zip(layout, nouns, strict=True))
            rows.append([dimension, WORDS[dimension], str(plan.degree(dimension)), *spans])
    if len(rows) > 1:
        lines += ["", *columns(rows, "llrrrr")]
    return lines


def _server(placement: Placement, name: str, gpus: int, width: int) -> list[str]:
    factors = [(d, placement.layout(d).domain) for d in DIMENSIONS if placement.layout(d).domain > 1]
    used = prod(factor for _, factor in factors)
    head = f"one {name}: " + (f"all {gpus} GPUs work" if used == gpus else f"{used} of {gpus} GPUs work")
    if not factors:
        return wrapped(head, width)
    room = width - _LABEL - 2
    drawn, idle = list(factors), gpus - used
    while len(drawn) > 1 and _wide(drawn, idle) > room:
        drawn.pop()
        idle = 0
    copies = used // prod(factor for _, factor in drawn)
    if copies > 1:
        beyond = factors[len(drawn) :]
        where = ", ".join(f"{d} 0–{factor - 1}" for d, factor in beyond)
        head += f"; drawn is one of {copies} groups alike ({where})"
    return [*wrapped(head, width), *_grid(drawn, idle, room)]


def _wide(factors: Sequence[tuple[str, int]], idle: int) -> int:
    cells = prod(factor for _, factor in factors)
    return cells * (_cell(factors) + 1) + (9 if idle else 0)


def _cell(factors: Sequence[tuple[str, int]]) -> int:
    return len(str(factors[0][1] - 1)) + 2


def _grid(factors: Sequence[tuple[str, int]], idle: int, room: int) -> list[str]:
    """One row for each dimension, its groups as cells; a cell spans the GPUs of its group."""
    inner = _cell(factors)
    cells = prod(factor for _, factor in factors)
    if _wide(factors, idle) > room:  # one dimension alone, still too wide: begin and end of it
        return _long_row(*factors[0], room)
    rows: list[list[tuple[int, str]]] = []
    span = 1
    for _, factor in factors:
        size = span * inner + span - 1
        row = [(size, str(index % factor)) for index in range(cells // span)]
        rows.append([*row, (8, f"{idle} idle")] if idle else row)
        span *= factor
    edges = [_edges(row) for row in rows]
    lines = [_rule(set(), edges[0], "┌", "┐")]
    for index, (dimension, _) in enumerate(factors):
        body = "│".join(text.center(size) for size, text in rows[index])
        lines.append(f"{dimension:>4}  │{body}│")
        last = index + 1 == len(factors)
        lines.append(_rule(edges[index], set(), "└", "┘") if last else _rule(edges[index], edges[index + 1], "├", "┤"))
    return lines


def _long_row(dimension: str, factor: int, room: int) -> list[str]:
    inner = len(str(factor - 1)) + 2
    shown = max(3, min(room // (inner + 1), 12) - 1)
    texts = [str(index) for index in range(shown - 2)] + ["…", str(factor - 1)]
    row = [(inner, text) for text in texts]
    body = "│".join(text.center(size) for size, text in row)
    edges = _edges(row)
    return [_rule(set(), edges, "┌", "┐"), f"{dimension:>4}  │{body}│", _rule(edges, set(), "└", "┘")]


def _edges(row: Sequence[tuple[int, str]]) -> set[int]:
    found, at = set(), -1
    for size, _ in row:
        at += size + 1
        found.add(at)
    return found


def _rule(above: set[int], below: set[int], left: str, right: str) -> str:
    most = max(above | below)
    marks = {(True, True): "┼", (True, False): "┴", (False, True): "┬", (False, False): "─"}
    middle = "".join(marks[at in above, at in below] for at in range(most))
    return " " * _LABEL + left + middle + right


def _tiers(placement: Placement, purchase: Purchase, width: int) -> list[str]:
    leaf, pod = placement.ranks_in("leaf"), placement.ranks_in("pod")
    if purchase.servers == 1:
        return ["  cluster: this one server, no network between servers"]
    lines = []
    joined = f"  one leaf group: {leaf} servers" if leaf > 1 else "  one leaf group: a single server"
    lines += [joined, *_marks(["▪"] * leaf, leaf, width, "servers")]
    if pod > 1:
        lines += [f"  cluster: {pod} leaf groups of {leaf}", *_marks([f"[{leaf}]"] * pod, pod, width, "leaf groups")]
    else:
        lines += wrapped("cluster: this one leaf group; nothing crosses a spine", width)
    return lines


def _marks(marks: Sequence[str], total: int, width: int, noun: str) -> list[str]:
    """Marks in groups of eight on one line; an ellipsis and the number where they are too many."""
    tail = f" … ({total} {noun} in all)"
    text, shown = "", 0
    for mark in marks:
        piece = (" " if shown and shown % 8 == 0 else "") + mark
        if 6 + len(text) + len(piece) + (len(tail) if shown + 1 < total else 0) > width:
            return [" " * _LABEL + text + tail]
        text, shown = text + piece, shown + 1
    return [" " * _LABEL + text]
