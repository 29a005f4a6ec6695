"""Fitted constants written into the catalogue's files. Floor 5. In: the text of a file, fits. Out: the new text.

Only the value, the source and the note of a fitted figure change; comments and all other lines stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codesign.calibrate.fit import Parameter
from codesign.calibrate.programme import Fitted
from codesign.spec.hardware import Efficiency, Gpu

UNIT = {"launch_s": ("us", 1e6), "collective_launch_s": ("us", 1e6), "host_layer_s": ("us", 1e6),
        "host_mixture_s": ("us", 1e6), "step_overhead_s": ("ms", 1e3)}  # fmt: skip
DIGITS = 4
DEFAULT = "megatron-core"
"""The generation of software that an instance is taken to use where it states no other assumptions."""

SOURCE = "calibrated"


def updated(text: str, section: str, found: Sequence[Fitted]) -> str:
    """The text of a section's file with the values of fits.

    Raises
    ------
    ValueError
        If a record or a field of it is not in the text.
    """
    for fitted in found:
        for parameter, value in fitted.fit.values.items():
            if parameter.section == section:
                for record in parameter.records:
                    text = _with_figure(text, record, parameter, value, note_of(fitted))
            elif section == "assumptions" and parameter.section == "software" and DEFAULT in parameter.records:
                text = _with_figure(text, "default", parameter, value, f"as {DEFAULT}; {note_of(fitted)}")
    return text


def note_of(fitted: Fitted) -> str:
    """What a figure was fitted to, and how well."""
    errors = ", ".join(
        f"{file.removesuffix('.csv')} {error:.1%}" for file, error in sorted(fitted.fit.error_after.items())
    )
    return f"{fitted.stage.name}: {fitted.fit.samples} configurations, mean error {errors}"


def _with_figure(text: str, record: str, parameter: Parameter, value: float, note: str) -> str:
    start = re.search(rf"^{re.escape(record)}:\n", text, re.M)
    if start is None:
        raise ValueError(f"no record {record}")
    end = re.search(r"^\S", text[start.end() :], re.M)
    stop = start.end() + (end.start() if end else len(text) - start.end())
    body = text[start.end() : stop]
    unit, scale = UNIT.get(parameter.field, ("", 1.0))
    written = f"{{value: {float(f'{value * scale:.{DIGITS}g}')!r}" + (f", unit: {unit}" if unit else "")
    written += f', source: {SOURCE}, note: "{note}"}}'
    line = re.search(rf"^( +){parameter.field}: \{{.*\}}$", body, re.M)
    if line is not None:
        body = body[: line.start()] + f"{line.group(1)}{parameter.field}: {written}" + body[line.end() :]
    elif parameter.field in Efficiency.model_fields and parameter.field not in Gpu.model_fields:
        after = re.search(r"^( +)matmul_ceiling: \{.*\}$", body, re.M)
        if after is None:
            raise ValueError(f"no efficiency in {record}")
        body = f"{body[: after.end()]}\n{after.group(1)}{parameter.field}: {written}{body[after.end() :]}"
    else:
        raise ValueError(f"no {parameter.field} in {record}")
    return text[: start.end()] + body + text[stop:]
