"""Rank map and bill of materials as tables: the rows of the files beside a solution. Floor 2. Numbers only, no files.

One definition for the writer of the files and for `verify`, which computes them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from codesign.design.design import Design
from codesign.design.evaluation import BillLine
from codesign.design.placement import RankMap, rank_map

RANK_MAP_FILE = "rank_map.csv"
BILL_FILE = "bill_of_materials.csv"

RANK_MAP_COLUMNS = ("rank", "server", "gpu", "leaf_group", "tp", "cp", "dp", "pp")
BILL_COLUMNS = ("item", "count", "unit_usd", "total_usd", "power_w")

Row = tuple[str | int | float, ...]


def rank_map_rows(design: Design) -> list[Row]:
    """One row a rank, in the columns `RANK_MAP_COLUMNS`."""
    ranks: RankMap = rank_map(design.plan, design.placement)
    columns = (
        range(design.plan.world),
        ranks.server.tolist(),
        ranks.gpu.tolist(),
        ranks.leaf_group.tolist(),
        *(ranks.coordinates[dimension].tolist() for dimension in ("tp", "cp", "dp", "pp")),
    )
    return list(zip(*columns, strict=True))


def bill_rows(lines: Iterable[BillLine]) -> list[Row]:
    """One row a line of the bill, in the columns `BILL_COLUMNS`."""
    return [(line.item, line.count, line.unit_usd, line.total_usd, line.power_w) for line in lines]
