"""Bars, columns and wrapped lines: aligned, no wider than asked, and the same width in ASCII."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codesign.report import layout

WORDS = st.text("abcdefgh", min_size=1, max_size=30)


@given(st.floats(0.0, 1.0), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_share(share: float, width: int) -> None:
    drawn = layout.bar(share, width)
    eighths = 8 * drawn.count(layout.FULL) + sum(layout.EIGHTHS.index(mark) for mark in drawn if mark != layout.FULL)
    assert len(drawn) <= width
    assert abs(eighths - share * width * 8) <= (1 if share > 0 else 0)


def test_any_share_above_nothing_is_seen() -> None:
    assert layout.bar(1e-9, 10) == "▏"
    assert layout.bar(0.0, 10) == ""
    assert layout.bar(1.0, 3) == "███"
    assert layout.bar(7.0, 3) == "███"


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=8))
def test_columns_are_aligned(rows: list[tuple[str, str, str]]) -> None:
    lines = layout.columns(rows, "lrl")
    second = {line.rstrip().rfind(row[1] + "  " + row[2]) + len(row[1]) for line, row in zip(lines, rows, strict=True)}
    assert len(second) == 1  # right-aligned cells end in one column
    assert all(line.startswith("  " + row[0]) for line, row in zip(lines, rows, strict=True))


@given(
    st.lists(st.tuples(WORDS, st.floats(0.0, 1.0)), min_size=1, max_size=12),
    st.integers(72, 120),
)
def test_bars_keep_to_the_width(parts: list[tuple[str, float]], width: int) -> None:
    rows = [(name, f"{share:.2f} GB", share) for name, share in parts]
    lines = layout.bars(rows, width, ("in all", "1.00 GB"))
    assert len(lines) == len(rows) + 1
    assert max(len(line) for line in lines) <= width
    starts = {line.index("%") for line in lines[:-1]}
    assert len(starts) == 1


@given(st.text("ab cd", max_size=400), st.integers(72, 120))
def test_wrapped_lines_keep_every_word(text: str, width: int) -> None:
    lines = layout.wrapped(text, width, first="  - ")
    limit = max(width, max((len(word) for word in text.split()), default=0) + 4)
    assert all(len(line) <= limit for line in lines)
    assert " ".join(lines).replace("-", "").split() == text.split()


def test_ascii_keeps_every_column() -> None:
    text = "┌───┬───┐\n│ 0 │ 1 │\n└───┴───┘ × · … █▋▏ ▪ µ –"
    plain = layout.plain(text)
    assert plain.isascii()
    assert [len(line) for line in plain.split("\n")] == [len(line) for line in text.split("\n")]
    assert layout.plain("München") == "M?nchen"
