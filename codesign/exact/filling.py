"""Parts of a design that are being filled in: what is known, what was filled and why, and faults. Floor 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codesign.errors import Fault
from codesign.exact.partial import Partial

MOST_LISTED = 12
"""Choices that a message lists."""


class Filling:
    """Values by the paths of the plain form, such as `plan.tp`; see `codesign.exact.partial`."""

    def __init__(self, partial: Partial) -> None:
        self.partial = partial
        self.values: dict[str, Any] = dict(partial.values)
        self.filled: list[str] = []
        self.faults: list[Fault] = []

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def fill(self, name: str, value: Any, reason: str) -> None:
        self.values[name] = value
        self.filled.append(f"{name} = {said(value)}: {reason}")

    def missing(self, name: str, choices: Sequence[Any], hint: str = "") -> None:
        """A part that is not stated and could be several things."""
        expected = listed([said(one) for one in choices]) if choices else "a value"
        self.faults.append(self.partial.fault(name, "nothing", expected, hint))

    def several(self, name: str, stated: Mapping[str, Any], left: Sequence[Any]) -> None:
        """Faults for the fields in which the choices differ; or one, if there is no choice at all."""
        if not left:
            hint = "none that the instance offers or owns can join so many servers"
            missing = next(field for field, value in stated.items() if value is None)
            self.faults.append(
                self.partial.fault(f"{name}.{missing}", "nothing", "another network or fewer servers", hint)
            )
            return
        for field, value in stated.items():
            choices = sorted({getattr(one, field) for one in left})
            if value is None and len(choices) > 1:
                self.missing(f"{name}.{field}", choices)

    def unknown(self, name: str, stated: Mapping[str, Any], known: Sequence[Any]) -> None:
        """The first stated field to which no record of the instance has a value, beside those before it."""
        left = list(known)
        for field, value in stated.items():
            if value is None:
                continue
            narrower = [one for one in left if getattr(one, field) == value]
            if not narrower:
                choices = sorted({getattr(one, field) for one in left})
                expected = listed([said(one) for one in choices])
                found = f"'{value}'" if isinstance(value, str) else str(value)
                hint = "what the instance offers or owns, with the other stated fields"
                self.faults.append(self.partial.fault(f"{name}.{field}", found, expected, hint))
                return
            left = narrower


def said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "none"


def listed(texts: Sequence[str]) -> str:
    """The choices: one alone, or "one of" them, cut where they are many."""
    tail = f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else ""
    before = "one of " if len(texts) > 1 else ""
    return before + ", ".join(texts[:MOST_LISTED]) + tail


def layout_said(layout: tuple[int, ...]) -> str:
    return " x ".join(str(factor) for factor in layout)
