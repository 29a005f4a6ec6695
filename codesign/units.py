"""Quantities as people write them -> SI numbers. Floor 0. In: text such as `400Gb/s`, `$30k`, `90d`. Out: floats.

Units are told apart by case, as in the field: `Gb/s` are bits, `GB/s` are bytes. Decimal and binary prefixes differ
(`80GB`, `80GiB`). Arithmetic is decimal, so that `3.35TB/s` is the double next to 3.35e12 and not a neighbour of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from math import isfinite

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_BYTES = {
    **{f"{prefix}B": Decimal(10) ** power for prefix, power in _DECIMAL.items()},
    **{f"{prefix}B": Decimal(2) ** power for prefix, power in _BINARY.items()},
}
_BITS = {f"{prefix}b": Decimal(10) ** power / 8 for prefix, power in _DECIMAL.items() if prefix}
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "day": Decimal(86400),
    "days": Decimal(86400),
    "w": Decimal(604800),
    "weeks": Decimal(604800),
    "y": Decimal(31557600),
    "years": Decimal(31557600),
}
_LARGE = {"k": 3, "K": 3, "M": 6, "B": 9, "T": 12}

UNITS: Mapping[str, Mapping[str, Decimal]] = {
    "size": _BYTES,
    "bandwidth": {
        **{f"{unit}/s": factor for unit, factor in (_BYTES | _BITS).items()},
        **{f"{unit}ps": factor for unit, factor in _BITS.items()},
    },
    "time": _SECONDS,
    "power": {f"{prefix}W": Decimal(10) ** power for prefix, power in list(_DECIMAL.items())[:4]},
    "money": {
        "": Decimal(1),
        **{unit: Decimal(10) ** power for unit, power in _LARGE.items()},
    },
    "compute": {f"{prefix}FLOP/s": Decimal(10) ** power for prefix, power in _DECIMAL.items() if prefix},
    "energy price": {"/kWh": 1 / Decimal(3_600_000), "/MWh": 1 / Decimal(3_600_000_000), "/J": Decimal(1)},
    "count": {"": Decimal(1), **{unit: Decimal(10) ** power for unit, power in _LARGE.items()}},
    "share": {"": Decimal(1), "%": Decimal("0.01")},
}
"""Unit -> SI value of one, by dimension. Money and energy prices take a `$` in front."""

EXAMPLES: Mapping[str, str] = {
    "size": "80GB, 80GiB or 2TB",
    "bandwidth": "400Gb/s, 50GB/s or 3.35TB/s",
    "time": "90d, 12h, 30min or 4us",
    "power": "1.2MW, 700W",
    "money": "$30M, $312k or 30000000",
    "compute": "989TFLOP/s",
    "energy price": "$0.08/kWh",
    "count": "1.5T, 300B or 8192",
    "share": "20% or 0.2",
}

_QUANTITY = re.compile(
    r"(?P<sign>[-+]?)(?P<dollar>\$?)\s*(?P<number>([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?)\s*(?P<unit>\S*)"
)
LONGEST = 64


class QuantityError(ValueError):
    """Text that is no quantity of the dimension; `expected` and `hint` say what would be."""

    def __init__(self, dimension: str, hint: str = "") -> None:
        self.expected = f"{_article(dimension)} such as {EXAMPLES[dimension]}"
        self.hint = hint
        super().__init__(f"expected {self.expected}" + (f" ({hint})" if hint else ""))


def quantity(text: str, dimension: str) -> float:
    """SI value of a quantity written with its unit.

    Parameters
    ----------
    text : the quantity, for example `1.2MW`.
    dimension : a key of `UNITS`.

    Raises
    ------
    QuantityError
        If it is not one of that dimension, or not finite.
    """
    units = UNITS[dimension]
    found = _QUANTITY.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if found is None:
        raise QuantityError(dimension)
    unit, dollar = found["unit"], bool(found["dollar"])
    if dollar and dimension not in ("money", "energy price"):
        raise QuantityError(dimension, "this is no sum of money")
    if not dollar and dimension == "energy price":
        raise QuantityError(dimension, "write the dollar sign, so that the currency is plain")
    if unit not in units:
        raise QuantityError(dimension, _about_unit(unit, dimension))
    try:
        value = float(Decimal(found["sign"] + found["number"]) * units[unit])
    except (InvalidOperation, OverflowError):
        raise QuantityError(dimension) from None
    if not isfinite(value):
        raise QuantityError(dimension, "the number is too large")
    return value


def _about_unit(unit: str, dimension: str) -> str:
    if not unit:
        return "it has no unit"
    lower = [known for known in UNITS[dimension] if known.lower() == unit.lower() and known]
    if lower:
        return f"units are told apart by case: {' or '.join(sorted(lower))}"
    others = [name for name, units in UNITS.items() if unit in units]
    return f"{unit!r} is a unit of {others[0]}" if others else f"{unit!r} is no unit that is known here"


def _article(dimension: str) -> str:
    return {
        "size": "a size",
        "money": "a sum of money",
        "count": "a number",
        "energy price": "a price of energy",
    }.get(dimension, f"a {dimension}")
