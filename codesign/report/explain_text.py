"""An explanation as a person reads it. Floor 6. In: an `Explanation`. Out: plain text no wider than asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from codesign.design.evaluation import Memory, WorkloadEvaluation
from codesign.report.alternative import Alternative, Difference
from codesign.report.explain import Explanation, Neighbour
from codesign.report.layout import bars, blocks, clipped, columns, plain, wrapped
from codesign.report.quantity import digits, dollars, figure, percent_down, percent_up, scaled, seconds, share, usd
from codesign.report.text import (
    LEAST_SHARE,
    NARROWEST,
    OBJECTIVES,
    certificate_sentence,
    conflict_lines,
    headline,
    money,
    time_shares,
)

WORDS = {"total_cost": ("dearer", "cheaper"), "tokens_per_usd": ("worse", "better")}
"""Objective -> worse and better; the others are about speed."""
SPEED = ("slower", "faster")


def explanation(found: Explanation, width: int = 80, unicode: bool = True) -> str:
    """The explanation as text no wider than `width` columns (at least 60)."""
    width = max(width, NARROWEST)
    solution = found.solution
    instance, design, evaluation = solution.instance, solution.design, solution.evaluation
    parts: list[Sequence[str]] = [[clipped(instance.name, width)]]
    if design is None or evaluation is None:
        nothing = "No verified design was found before the limit."
        parts.append(
            conflict_lines(solution.conflict, width) if solution.conflict is not None else wrapped(nothing, width)
        )
    else:
        head = headline(instance, design, evaluation, width)
        if solution.certificate is not None:
            head += wrapped(certificate_sentence(solution.certificate), width)
        parts.append(head)
    # What was asked for comes first; without a question, what holds of the answer.
    parts += [_alternative(one, found, width) for one in found.alternatives]
    if design is not None and evaluation is not None and not found.alternatives:
        (figures,) = evaluation.workloads.values()
        server = design.purchase.server
        parts += [
            ["What binds", *_limits(found, width), *_one_more(found, server, width)],
            _neighbours(found, width),
            _time(figures, width),
            money(evaluation, width),
            _memory(figures.memory, width),
        ]
    text = blocks(parts)
    return text if unicode else plain(text)


# --------------------------------------------------------------------------------------------------- what binds


def _limits(found: Explanation, width: int) -> list[str]:
    rows = [
        [
            one.name,
            figure(one.value, one.unit),
            "of",
            figure(one.most, one.unit),
            f"{percent_down(max(one.slack, 0.0))} left",
            "binds" if one.binds else "",
        ]
        for one in found.limits
    ]
    lines = columns(rows, "lrlrrl")
    if not any(one.binds for one in found.limits):
        lines += wrapped("No limit binds: each has 1 % or more left.", width)
    return lines


def _one_more(found: Explanation, server: str, width: int) -> list[str]:
    more = found.one_more_server
    if more is None:
        return []
    text = f"One more {server}, on the same network, would take {usd(more.capex_usd)} and {scaled(more.power_w, 'W')}"
    takes = {"capex": more.capex_usd, "power": more.power_w}
    over = [
        f"{figure(one.most - one.value, one.unit)} of {one.name}"
        for one in found.limits
        if one.name in takes and takes[one.name] > one.most - one.value
    ]
    return wrapped(
        f"{text}; there {'is' if len(over) == 1 else 'are'} {' and '.join(over)} left." if over else f"{text}.", width
    )


def _neighbours(found: Explanation, width: int) -> list[str]:
    if not found.neighbours:
        return []
    lines: list[str] = []
    for name, here in dict.fromkeys((one.name, one.here) for one in found.neighbours):
        lines.append(clipped(f"  {name}, now {_said(here)}", width))
        rows = [
            [clipped(_said(one.there), 24), _effect(one, found.solution.instance.objective)]
            for one in found.neighbours
            if one.name == name
        ]
        lines += [clipped(line, width) for line in columns(rows, "ll", indent="      ")]
    return ["One choice changed, all else kept", *lines]


def _effect(one: Neighbour, objective: str) -> str:
    effect = "cannot run" if one.worse is None else _by(one.worse, objective)
    broken = list(dict.fromkeys(fault.partition(":")[0] for fault in one.violations))
    return f"{effect}, breaks {', '.join(broken)}" if broken else effect


def _by(worse: float, objective: str) -> str:
    """How much worse (rounded down) or better (rounded down as well): no claim is more than was found."""
    slower, faster = WORDS.get(objective, SPEED)
    if abs(worse) < 1e-9:
        return "as good"
    return f"{percent_down(abs(worse))} {slower if worse > 0 else faster}"


# -------------------------------------------------------------------------------------------- time and memory


def _time(figures: WorkloadEvaluation, width: int) -> list[str]:
    total = figures.step_time_s
    rows = [(name, _in(value, total), part) for name, value, part in time_shares(figures) if part >= LEAST_SHARE]
    return ["Where the time of a step goes", *bars(rows, width, ("a step", _in(total, total)))]


def _in(value_s: float, total_s: float) -> str:
    """Seconds in the unit and with the decimals of the whole, so that parts can be added up by eye."""
    if total_s >= 10:
        return f"{value_s:.2f} s"
    return f"{value_s:.3f} s" if total_s >= 1 else f"{value_s * 1e3:.2f} ms"


def _memory(memory: Memory, width: int) -> list[str]:
    capacity = memory.capacity_bytes
    parts = sorted(memory.parts_bytes.items(), key=lambda part: -part[1])
    parts.append(("free", capacity - memory.worst_rank_bytes))
    rows = [
        (name, f"{value / 1e9:.2f} GB", value / capacity) for name, value in parts if value / capacity >= LEAST_SHARE
    ]
    head = f"Memory of the fullest GPU, {capacity / 1e9:.2f} GB, {memory.verdict}"
    return [head, *bars(rows, width)]


# ------------------------------------------------------------------------------------------------- alternatives


def _alternative(one: Alternative, found: Explanation, width: int) -> list[str]:
    lines = wrapped(f"With {' and '.join(one.overrides)}: {_verdict(one, found)}", width, first="")
    lines += [line for reason in one.reasons for line in wrapped(reason, width, first="  - ")]
    if one.choices:
        most = max(8, (width - 36) // 2)
        rows = [["", "now", "then"]]
        rows += [
            [clipped(d.name, 30), clipped(_said(d.here), most), clipped(_said(d.there), most)] for d in one.choices
        ]
        lines += ["", *(clipped(line, width) for line in columns(rows, "lll"))]
    if one.totals and one.verdict != "same":
        lines += ["", *_sums(one, width)]
    return lines


def _verdict(one: Alternative, found: Explanation) -> str:
    objective = found.solution.instance.objective
    slower, faster = WORDS.get(objective, SPEED)
    if one.verdict == "worse" and one.at_least_worse is not None:
        return f"every design is at least {percent_down(one.at_least_worse)} {slower}; {_values(one, found)}."
    if one.verdict == "not better" and one.found_worse is not None:
        text = f"the best design found is {percent_down(one.found_worse)} {slower}; {_values(one, found)}"
        return f"{text}. The gaps that are proven do not exclude a better one."
    if one.verdict == "better" and one.found_worse is not None:
        return f"{percent_down(-one.found_worse)} {faster}; {_values(one, found)}."
    return {
        "same": "the same design: the answer keeps it already.",
        "equal": f"another design, as good; {_values(one, found)}.",
        "another question": f"{_values(one, found)}.",
        "possible": f"there is a design; {_values(one, found)}.",
        "illegal": "no such plan is legal.",
        "infeasible": "nothing fits.",
    }.get(one.verdict, "not decided.")


def _values(one: Alternative, found: Explanation) -> str:
    """The objective of the best design found, beside that of the answer."""
    if one.solution is None or one.solution.certificate is None:
        return "no design"
    there, here = one.solution, found.solution
    name = OBJECTIVES.get(there.instance.objective, there.instance.objective)
    text = f"{name} {figure(there.certificate.value, there.objective_unit)}"  # type: ignore[union-attr]
    gap = f", proven to {percent_up(there.certificate.gap)}"  # type: ignore[union-attr]
    if here.certificate is None or here.instance.objective != there.instance.objective:
        return text + gap
    return f"{text} instead of {figure(here.certificate.value, here.objective_unit)}{gap}"


def _sums(one: Alternative, width: int) -> list[str]:
    """Where time and money differ, largest differences first, and what they come to."""
    totals = {each.name: each for each in one.totals}
    step = totals["step_time_s"]
    least = LEAST_SHARE * max(step.here, step.there)
    rows = [["a step", "now", "then", "difference"]]
    rows += [_time_row(part, step) for part in one.step_s if abs(part.there - part.here) >= least]
    rows.append(_time_row(Difference("in all", step.here, step.there), step))
    rows += [["", "", "", ""], ["money, USD", "now", "then", "difference"]]
    rows += [_money_row(line) for line in one.bill_usd]
    rows.append(_money_row(Difference("in all", totals["capex_usd"].here, totals["capex_usd"].there)))
    rows += [["", "", "", ""], ["all told", "now", "then", ""]]
    rows += [row for each in one.totals if (row := _total_row(each)) is not None]
    taken = sum(max(len(row[index]) for row in rows) for index in (1, 2, 3)) + 8
    name_most = max(8, width - taken)
    return columns([[clipped(row[0], name_most), *row[1:]] for row in rows], "lrrr")


def _time_row(part: Difference, step: Difference) -> list[str]:
    longest, change = max(step.here, step.there), part.there - part.here
    return [
        part.name,
        _in(part.here, longest),
        _in(part.there, longest),
        f"{'+' if change >= 0 else ''}{_in(change, longest)}",
    ]


def _money_row(line: Difference) -> list[str]:
    change = line.there - line.here
    return [line.name, dollars(line.here), dollars(line.there), f"{'+' if change > 0 else ''}{dollars(change)}"]


_TOTALS: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("speed", lambda value: scaled(value, "tokens/s")),
    "mfu": ("MFU", share),
    "goodput": ("goodput", share),
    "time_to_train_s": ("time to train", seconds),
    "memory_bytes": ("memory of the fullest GPU", lambda value: f"{value / 1e9:.2f} GB"),
    "power_w": ("power", lambda value: scaled(value, "W")),
    "total_cost_usd": ("with electricity", usd),
}


def _total_row(each: Difference) -> list[str] | None:
    known = _TOTALS.get(each.name)
    if known is None or each.here is None or each.there is None:
        return None
    name, say = known
    return [name, say(each.here), say(each.there), ""]


def _said(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    if isinstance(value, list):
        return " x ".join(str(one) for one in value)
    return str(value) if value != "" else "none"
