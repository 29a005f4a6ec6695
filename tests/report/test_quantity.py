"""Numbers in words: claims are rounded to the side on which they stay true."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.report import quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (4.2e-6, "4.20 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.50 s"),
        (119.0, "119 s"),
        (120.0, "2.00 min"),
        (7200.0, "2.00 hours"),
        (86400.0 * 2, "2.00 days"),
        (31557600.0 * 3, "3.00 years"),
        (float("inf"), "never"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert quantity.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "$0"),
        (312.0, "$312"),
        (312_400.0, "$312.4 k"),
        (29_841_200.0, "$29.84 M"),
        (-1_500.0, "-$1.500 k"),
        (2.5e9, "$2.500 B"),
    ],
)
def test_usd(value: float, text: str) -> None:
    assert quantity.usd(value) == text


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.0, "0 %", "0 %"),
        (0.001, "0.1 %", "0.1 %"),  # not 0.11 %: a tenth of a per cent is one, whatever the binary fraction
        (0.00031, "0.031 %", "0.031 %"),
        (0.000314, "0.032 %", "0.031 %"),
        (0.12341, "12.4 %", "12.3 %"),
        (1.0, "100 %", "100 %"),
    ],
)
def test_percent(value: float, up: str, down: str) -> None:
    assert (quantity.percent_up(value), quantity.percent_down(value)) == (up, down)


@given(st.floats(1e-9, 10.0))
def test_a_claim_is_never_more_than_what_is_proven(value: float) -> None:
    exact = Fraction(value) * 100
    noise = Fraction(1, 10**11)
    up = Fraction(quantity.percent_up(value).removesuffix(" %"))
    down = Fraction(quantity.percent_down(value).removesuffix(" %"))
    assert exact * (1 - noise) <= up <= exact * Fraction(111, 100)
    assert exact * Fraction(89, 100) <= down <= exact * (1 + noise)


@given(st.floats(1.0, 1e17))
def test_a_prefix_keeps_three_figures(value: float) -> None:
    number, unit = quantity.scaled(value, "B").split(" ")
    factor = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(value, rel=0.00501)
    assert value < 999.5 or unit != "B"
