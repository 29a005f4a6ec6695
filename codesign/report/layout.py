"""Lines, columns and bars of a plain-text report. Floor 6. In: rows of strings, shares. Out: lines no wider than asked.

Text is written with Unicode marks; `plain` puts ASCII in their place, for terminals without them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

INDENT = "  "
EIGHTHS = " ▏▎▍▌▋▊▉"
FULL = "█"

_ASCII = str.maketrans(
    {
        **dict.fromkeys("▌▋▊▉█", "#"),
        **dict.fromkeys("▏▎▍", " "),
        **dict.fromkeys("┌┐└┘├┤┬┴┼", "+"),
        "─": "-",
        "│": "|",
        "▪": "#",
        "×": "x",
        "·": ".",
        "…": "~",
        "–": "-",
        "≤": "<=",
        "≥": ">=",
        "µ": "u",
        "∞": "inf",
        "→": "->",
    }
)


def plain(text: str) -> str:
    """The same text in ASCII; any other letter (a name that the user gave) becomes a question mark.

    Marks of tables and bars have stand-ins of one column; those of sentences may be wider.
    """
    lines = text.translate(_ASCII).encode("ascii", "replace").decode("ascii").split("\n")
    return "\n".join(line.rstrip() for line in lines)


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of so many columns, in eighths of one; something is shown for any share above 0."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return FULL * full + (EIGHTHS[rest] if rest else "")


def columns(rows: Sequence[Sequence[str]], align: str, gap: str = "  ", indent: str = INDENT) -> list[str]:
    """Rows as aligned columns; `align` has "l" or "r" for each column."""
    widths = [max((len(row[index]) for row in rows), default=0) for index in range(len(align))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append((indent + gap.join(cells)).rstrip())
    return lines


def clipped(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is longer than `width`."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def wrapped(text: str, width: int, indent: str = INDENT, first: str | None = None) -> list[str]:
    """A sentence as lines; `first` is what the first line begins with in place of the indent."""
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent if first is None else " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def bars(rows: Sequence[tuple[str, str, float]], width: int, total: tuple[str, str] | None = None) -> list[str]:
    """Lines of name, value, share in per cent and a bar; the longest bar fills the line.

    Parameters
    ----------
    rows : name, value as a string, share of the whole.
    total : name and value of a last line under a rule.
    """
    most = max((share for _, _, share in rows), default=0.0)
    cells = [[name, value, f"{share * 100:.1f} %"] for name, value, share in rows]
    if total is not None:
        cells.append([*total, ""])
    name_most = max(12, width - 40)
    cells = [[clipped(name, name_most), value, share] for name, value, share in cells]
    lines = columns(cells, "lrr")
    taken = max((len(line) for line in lines), default=0) + 2
    room = min(max(width - taken, 0), 40)
    drawn = []
    for line, (_, _, share) in zip(lines, rows, strict=False):
        mark = bar(share / most if most else 0.0, room)
        drawn.append(f"{line.ljust(taken)}{mark}".rstrip())
    return drawn + lines[len(rows) :]


def blocks(parts: Iterable[Sequence[str]]) -> str:
    """Groups of lines with an empty line between them."""
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
