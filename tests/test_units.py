"""Quantities: values worked by hand, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.units import EXAMPLES, LONGEST, UNITS, QuantityError, quantity

GOOD = [
    ("80GB", "size", 80e9),
    ("80GiB", "size", 85_899_345_920.0),  # 80 x 1024^3
    ("2TB", "size", 2e12),
    ("0.5 kB", "size", 500.0),
    ("400Gb/s", "bandwidth", 50e9),  # bits: an eighth
    ("400Gbps", "bandwidth", 50e9),
    ("50GB/s", "bandwidth", 50e9),
    ("3.35TB/s", "bandwidth", 3.35e12),
    ("1GiB/s", "bandwidth", 1_073_741_824.0),
    ("90d", "time", 7_776_000.0),
    ("1 w", "time", 604_800.0),
    ("12h", "time", 43_200.0),
    ("30min", "time", 1800.0),
    ("4us", "time", 4e-6),
    ("4µs", "time", 4e-6),
    ("5y", "time", 157_788_000.0),  # Julian years
    ("1.2MW", "power", 1.2e6),
    ("700W", "power", 700.0),
    ("$30M", "money", 30e6),
    ("$ 312k", "money", 312e3),
    ("30000000", "money", 30e6),
    ("$1.5B", "money", 1.5e9),
    ("989TFLOP/s", "compute", 9.89e14),
    ("$0.08/kWh", "energy price", 0.08 / 3.6e6),
    ("$80/MWh", "energy price", 0.08 / 3.6e6),
    ("1.5T", "count", 1.5e12),
    ("8192", "count", 8192.0),
    ("1e3", "count", 1000.0),
    (".5k", "count", 500.0),
    ("20%", "share", 0.2),
    ("0.2", "share", 0.2),
]
BAD = [
    ("80", "size", "no unit"),
    ("80gb", "size", "GB"),
    ("80GB/s", "size", "unit of bandwidth"),
    ("400gb/s", "bandwidth", "GB/s or Gb/s"),
    ("1,000", "count", ""),
    ("1_000", "count", ""),
    ("--3", "count", ""),
    ("+-3", "count", ""),
    ("inf", "count", ""),
    ("nan", "count", ""),
    ("", "count", ""),
    (" ", "size", ""),
    ("٣GB", "size", ""),  # digits of another script
    ("1e999999", "count", ""),
    ("1e400", "count", ""),
    ("9" * (LONGEST + 1), "count", ""),
    ("$5GB", "size", "no sum of money"),
    ("0.08/kWh", "energy price", "dollar"),
    ("3M", "power", "unit of money"),
    ("90 D", "time", "d"),
    ("€30M", "money", ""),
]


@pytest.mark.parametrize(("text", "dimension", "value"), GOOD)
def test_value(text: str, dimension: str, value: float) -> None:
    assert quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "dimension", "hint"), BAD)
def test_refused(text: str, dimension: str, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        quantity(text, dimension)
    assert hint.lower() in caught.value.hint.lower()
    assert EXAMPLES[dimension] in str(caught.value)


def test_decimal_arithmetic_gives_the_nearest_double() -> None:
    assert quantity("3.35TB/s", "bandwidth") == 3.35e12
    assert quantity("1.1TB", "size") == 1.1e12


@given(st.sampled_from([(d, unit) for d, units in UNITS.items() for unit in units]), st.decimals(0, 10**9, places=3))
def test_every_unit_reads_back(case: tuple[str, str], number: object) -> None:
    dimension, unit = case
    text = f"{'$' if dimension == 'energy price' else ''}{number}{unit}"
    assert quantity(text, dimension) == pytest.approx(float(number) * float(UNITS[dimension][unit]), rel=1e-12)  # type: ignore[arg-type]


@given(st.text(max_size=80), st.sampled_from(sorted(UNITS)))
def test_any_text_is_a_number_or_a_refusal(text: str, dimension: str) -> None:
    try:
        assert isinstance(quantity(text, dimension), float)
    except QuantityError:
        pass
