"""The picture of a placement: every line of the box aligned, cells that span what they stand for, no line too wide."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.design import DIMENSIONS, Layout, Network, Placement, Plan, Purchase, StoragePurchase
from codesign.report.placement import picture

NETWORK = Network("rail-optimized", 2, "quantum2-qm9700", 1, "cx7-400g")


def drawn(layouts: dict[str, Layout], gpus: int, width: int) -> list[str]:
    """The picture of a placement with these layouts, on servers of so many GPUs."""
    whole = {d: layouts.get(d, Layout(1, 1, 1)) for d in DIMENSIONS}
    degrees = {d: layout.degree for d, layout in whole.items()}
    plan = Plan(**degrees, ep=1, virtual_stages=1, micro_batch=1, recompute="none", zero=1)
    servers = prod(layout.leaf * layout.pod for layout in whole.values())
    purchase = Purchase("hgx-h100", servers, NETWORK, StoragePurchase("", 0), 0.0)
    return picture(plan, Placement(**whole), purchase, gpus, width)


def box(lines: list[str]) -> list[str]:
    """The lines of the grid."""
    return [line for line in lines if any(mark in line for mark in "┌┐└┘├┤│")]


class TestByHand:
    def test_tensor_and_data_parallel_in_a_server_of_eight(self) -> None:
        lines = drawn({"tp": Layout(4, 1, 1), "dp": Layout(2, 4, 2)}, gpus=8, width=80)
        assert lines[:6] == [
            "  one hgx-h100: all 8 GPUs work",
            "      ┌───┬───┬───┬───┬───┬───┬───┬───┐",
            "  tp  │ 0 │ 1 │ 2 │ 3 │ 0 │ 1 │ 2 │ 3 │",
            "      ├───┴───┴───┴───┼───┴───┴───┴───┤",
            "  dp  │       0       │       1       │",
            "      └───────────────┴───────────────┘",
        ]
        assert "  one leaf group: 4 servers" in lines
        assert "      ▪▪▪▪" in lines
        assert "  cluster: 2 leaf groups of 4" in lines
        assert "      [4][4]" in lines

    def test_idle_gpus_are_shown(self) -> None:
        lines = drawn({"tp": Layout(2, 1, 1), "dp": Layout(3, 1, 1)}, gpus=8, width=80)
        assert lines[0] == "  one hgx-h100: 6 of 8 GPUs work"
        assert "2 idle" in lines[2]

    def test_one_server_has_no_network_to_draw(self) -> None:
        lines = drawn({"tp": Layout(8, 1, 1)}, gpus=8, width=80)
        assert "  cluster: this one server, no network between servers" in lines

    def test_a_domain_too_wide_to_draw_is_one_group_of_it(self) -> None:
        # 72 GPUs: 8 of tp (cells of 3 columns and a line: 33) times 9 of dp do not fit into 80 columns
        lines = drawn({"tp": Layout(8, 1, 1), "dp": Layout(9, 1, 1)}, gpus=72, width=80)
        assert "drawn is one of 9 groups alike (dp 0–8)" in lines[0]
        assert box(lines)[1] == "  tp  │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │"


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[str, Layout], int]:
    """Layouts that fill a part of a server, and its GPUs."""
    gpus = draw(st.sampled_from([4, 8, 16, 72]))
    left, layouts = gpus, {}
    for dimension in draw(st.permutations(DIMENSIONS)):
        domain = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        left //= domain
        layouts[dimension] = Layout(domain, draw(st.integers(1, 6)), draw(st.integers(1, 5)))
    return layouts, gpus


@given(placements(), st.integers(80, 120))
def test_lines_of_the_box_are_aligned_and_none_is_too_wide(case: tuple[dict[str, Layout], int], width: int) -> None:
    layouts, gpus = case
    lines = drawn(layouts, gpus, width)
    # the sentence above the box is the only line that names the server, and may be clipped by nobody
    assert all(len(line) <= width for line in lines[1:])
    grid = box(lines)
    if not grid:
        assert all(layout.domain == 1 for layout in layouts.values())
        return
    assert len({len(line) for line in grid}) == 1
    # rows and rules alternate, and a wall stands on a joint above and below it
    for above, row, below in zip(grid[::2], grid[1::2], grid[2::2], strict=False):
        for column, mark in enumerate(row):
            if mark == "│":
                assert above[column] in "┌┬┐┼├┤", (above, row)
                assert below[column] in "└┴┘┼├┤", (row, below)


@pytest.mark.parametrize("width", [72, 80, 100, 120])
def test_cells_of_a_dimension_are_equally_wide(width: int) -> None:
    grid = box(drawn({"tp": Layout(2, 1, 1), "cp": Layout(2, 2, 1), "dp": Layout(2, 1, 3)}, 8, width))
    for row in grid[1::2]:
        cells = row[7:-1].split("│")
        assert len({len(cell) for cell in cells}) == 1
