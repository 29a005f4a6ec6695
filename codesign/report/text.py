"""A solution as a person reads it. Floor 6. In: a solution, or a design with its evaluation. Out: plain text.

`summary` opens with what to buy, how fast it trains and what is proven; then plan, placement, time, money, memory and
limits. No colour, no control codes: the same text serves a terminal, a pipe and a file.
"""

from __future__ import annotations

from collections.abc import Sequence

from codesign.design import Design
from codesign.design.certificate import Certificate
from codesign.design.evaluation import Evaluation, LimitCheck, WorkloadEvaluation
from codesign.design.solution import NOT_ENOUGH, Conflict, Solution
from codesign.report.layout import INDENT, bars, blocks, clipped, columns, plain, wrapped
from codesign.report.placement import WORDS, picture
from codesign.report.quantity import (
    count,
    digits,
    dollars,
    figure,
    percent_up,
    scaled,
    seconds,
    share,
    usd,
)
from codesign.spec.instance import Instance

SOLVERS = {"cp-sat": "CP-SAT", "highs": "HiGHS"}
OBJECTIVES = {
    "step_time": "step time",
    "time_to_train": "time to train",
    "tokens_per_s": "tokens per second",
    "total_cost": "total cost",
    "tokens_per_usd": "tokens per dollar",
}
NARROWEST = 72
"""Columns that every table of a report fits into."""
LEAST_SHARE = 5e-4
"""Parts of a step below this share are left out of the bars: they would read 0.0 %."""


def summary(solution: Solution, width: int = 80, unicode: bool = True) -> str:
    """The whole answer as text no wider than `width` columns (at least 72)."""
    width = max(width, NARROWEST)
    instance = solution.instance
    if solution.design is None or solution.evaluation is None:
        text = blocks([[instance.name], _nothing(solution, width), _notes(solution.notes, width)])
    else:
        head = headline(instance, solution.design, solution.evaluation, width)
        if solution.certificate is not None:
            head += wrapped(certificate_sentence(solution.certificate), width)
        text = blocks(
            [
                [instance.name],
                head,
                *_body(instance, solution.design, solution.evaluation, width),
                _proof(solution, width),
                _notes(solution.notes, width),
            ]
        )
    return text if unicode else plain(text)


def evaluation_summary(
    instance: Instance,
    design: Design,
    evaluation: Evaluation,
    filled: Sequence[str] = (),
    width: int = 80,
    unicode: bool = True,
) -> str:
    """A design of the user's own, judged: what it breaks first.

    Parameters
    ----------
    filled : what was completed because nothing was left to decide, in words.
    """
    width = max(width, NARROWEST)
    broken = len(evaluation.violations)
    verdict = (
        wrapped(f"This design breaks {broken} rule{'s' * (broken != 1)} or limit{'s' * (broken != 1)}:", width)
        + [line for each in evaluation.violations for line in wrapped(each, width, first="  - ")]
        if broken
        else wrapped("This design keeps every rule and limit.", width)
    )
    parts = [
        [instance.name],
        verdict,
        headline(instance, design, evaluation, width),
        *_body(instance, design, evaluation, width),
    ]
    if filled:
        parts.append(["Completed", *(line for each in filled for line in wrapped(each, width, first="  - "))])
    text = blocks(parts)
    return text if unicode else plain(text)


# ------------------------------------------------------------------------------------------------------ headline


def headline(instance: Instance, design: Design, evaluation: Evaluation, width: int) -> list[str]:
    """What is bought and what it does, in two sentences."""
    workload, purchase = instance.workloads[0], design.purchase
    gpus = gpus_of(instance, purchase.server)
    owned = sum(item.count for item in instance.inventory if item.server.name == purchase.server)
    used, bought = min(owned, purchase.servers), max(purchase.servers - owned, 0)
    verb = " and ".join(
        part
        for part in (
            f"use {used} × {purchase.server} that you own" if used else "",
            f"buy {bought} × {purchase.server}" if bought else "",
        )
        if part
    )
    network = purchase.network
    joined = (
        "without a network between servers"
        if network.kind == "none"
        else f"on a {network.kind} network of {network.switch}"
        + (f", {network.oversubscription}:1 oversubscribed" if network.oversubscription > 1 else "")
    )
    storage = f", with {purchase.storage.units} × {purchase.storage.product}" if purchase.storage.units else ""
    total = f"{count(purchase.servers * gpus)} GPUs"
    lines = wrapped(
        f"{verb[0].upper()}{verb[1:]} ({total}), {joined}{storage}: {usd(evaluation.capex_usd)}, "
        f"{scaled(evaluation.power_w, 'W')}.",
        width,
    )
    figures = evaluation.workloads.get(workload.name)
    if figures is None:
        return lines
    name = workload.model.name
    speed = f"{scaled(figures.tokens_per_s, 'tokens/s')} at {share(figures.mfu)} MFU"
    if figures.time_to_train_s is None or workload.tokens is None:
        return lines + wrapped(f"Trains {name} at {speed}, a step every {seconds(figures.step_time_s)}.", width)
    done = f"Trains {name} on {count(workload.tokens)} tokens in {seconds(figures.time_to_train_s)}"
    cost = "" if evaluation.total_cost_usd is None else f", {usd(evaluation.total_cost_usd)} with electricity"
    return lines + wrapped(f"{done}, {speed}{cost}.", width)


def certificate_sentence(certificate: Certificate) -> str:
    """What is proven, by whom."""
    if not certificate.proven_by:
        return (
            "The proof was cut short by a limit: arithmetic alone excludes designs that are better by more than "
            f"{percent_up(certificate.gap)}, no more is proven."
        )
    who = "proven by " + " and ".join(SOLVERS.get(name, name) for name in certificate.proven_by)
    if certificate.gap == 0:
        return f"No design of the stated space is better, {who}."
    return f"No design of the stated space is better by more than {percent_up(certificate.gap)}, {who}."


def _nothing(solution: Solution, width: int) -> list[str]:
    if solution.conflict is not None:
        return conflict_lines(solution.conflict, width)
    if solution.status == "infeasible":
        return wrapped("Nothing fits: no design of the stated space keeps every rule and limit.", width)
    return wrapped("No verified design was found before the limit; that none exists is not proven either.", width)


def conflict_lines(conflict: Conflict, width: int) -> list[str]:
    """Which limits exclude each other, and how far each must move."""
    names = list(conflict.limits)
    if not names:
        return wrapped("Nothing fits, whatever the limits: no design of the stated space can run.", width)
    if names == ["inventory"]:
        lines = wrapped("Nothing fits: no design runs on what is owned.", width)
    elif len(names) == 1:
        lines = wrapped(f"Nothing fits: no design of the stated space keeps {names[0]}.", width)
    else:
        together = ", ".join(names[:-1]) + f" and {names[-1]}"
        lines = wrapped(
            f"Nothing fits: no design of the stated space keeps {together} together. "
            "Without any one of them there is a design.",
            width,
        )
    if conflict.moves:
        enough = {name: move for name, move in conflict.moves.items() if not move.endswith(NOT_ENOUGH)}
        for title, moves in (
            ("This would do:" if len(enough) == 1 else "Any one of these would do:", enough),
            ("These alone would not, since other limits come next:", conflict.moves.keys() - enough.keys()),
        ):
            if moves:
                lines += ["", INDENT + title]
            for name in [each for each in conflict.moves if each in moves]:
                lines += wrapped(f"{name}: {conflict.moves[name].removesuffix(NOT_ENOUGH)}", width, first="  - ")
    return lines


# ---------------------------------------------------------------------------------------------------------- body


def _body(instance: Instance, design: Design, evaluation: Evaluation, width: int) -> list[list[str]]:
    figures = evaluation.workloads.get(instance.workloads[0].name)
    parts = [_plan(instance, design, figures, width)]
    if figures is not None:
        gpus = gpus_of(instance, design.purchase.server)
        drawn = picture(design.plan, design.placement, design.purchase, gpus, width)
        parts += [["Placement", *drawn], _time(figures, width)]
    parts.append(money(evaluation, width))
    if figures is not None:
        parts.append(_memory(figures, width))
    if evaluation.limits:
        parts.append(["Limits", *(limit_lines(evaluation.limits))])
    return parts


def gpus_of(instance: Instance, server: str) -> int:
    """GPUs of a server that the instance offers or owns."""
    known = [*instance.offers.servers, *(item.server for item in instance.inventory)]
    return next(each.gpus for each in known if each.name == server)


def _plan(instance: Instance, design: Design, figures: WorkloadEvaluation | None, width: int) -> list[str]:
    plan, workload = design.plan, instance.workloads[0]
    rows = [[dimension, WORDS[dimension], str(plan.degree(dimension))] for dimension in ("tp", "cp", "pp", "dp")]
    if plan.ep > 1:
        rows.append(["ep", "expert parallel", str(plan.ep)])
    if plan.expert_tp > 1:
        rows.append(["etp", "expert tensor parallel", str(plan.expert_tp)])
    if plan.context_exchange != "ring":
        rows.append(["", "keys and values of cp", plan.context_exchange])
    if plan.schedule != "1f1b":
        rows.append(["", "schedule of pp", plan.schedule])
    micro_batches = workload.global_batch // max(1, plan.dp * plan.micro_batch)
    right = [
        ["micro-batch", f"{plan.micro_batch} of {count(workload.sequence_length)} tokens"],
        ["micro-batches", f"{micro_batches} a step"],
        ["virtual stages", str(plan.virtual_stages)],
        ["recompute, ZeRO", f"{plan.recompute}, {plan.zero}" + (" in a domain" * (plan.shard_within == "domain"))],
    ]
    rows = [[*left, *both] for left, both in zip(rows, [*right, *[["", ""]] * (len(rows) - 4)], strict=True)]
    lines = [f"Plan of {workload.name} ({count(plan.world)} ranks, {workload.framework}, {workload.precision})"]
    lines += columns(rows, "llrll", gap="   ")
    if figures is None:
        return lines
    told = [
        f"step {seconds(figures.step_time_s)}",
        scaled(figures.tokens_per_s, "tokens/s"),
        f"MFU {share(figures.mfu)}",
        f"HFU {share(figures.hfu)}",
        f"bubble {share(figures.bubble_fraction)}",
        f"goodput {share(figures.goodput)}",
    ]
    lines += wrapped(" · ".join(told), width)
    if figures.checkpoint_save_s is not None and figures.interruption_s is not None:
        load = "" if figures.checkpoint_load_s is None else f", loaded in {seconds(figures.checkpoint_load_s)}"
        lines += wrapped(
            f"checkpoint every {seconds(design.purchase.checkpoint_interval_s)}, "
            f"saved in {seconds(figures.checkpoint_save_s)}{load}; "
            f"an interruption every {seconds(figures.interruption_s)}",
            width,
        )
    return lines


def time_shares(figures: WorkloadEvaluation) -> list[tuple[str, float, float]]:
    """Parts of a step that are above zero, longest first: name, seconds, share."""
    total = figures.step_time_s
    parts = sorted(figures.breakdown_s.items(), key=lambda part: -part[1])
    return [(name, value, value / total) for name, value in parts if value > 0]


def _time(figures: WorkloadEvaluation, width: int) -> list[str]:
    rows = [
        (name, _step_seconds(value, figures.step_time_s), part)
        for name, value, part in time_shares(figures)
        if part >= LEAST_SHARE
    ]
    rest = sum(part for _, _, part in time_shares(figures) if part < LEAST_SHARE)
    if rest > 0:
        rows.append(("other", _step_seconds(rest * figures.step_time_s, figures.step_time_s), rest))
    total = ("a step", _step_seconds(figures.step_time_s, figures.step_time_s))
    return ["Where the time of a step goes", *bars(rows, width, total)]


def _step_seconds(value: float, total_s: float) -> str:
    """All parts of a step in one unit and with the same decimals, so that they can be added up by eye."""
    if total_s >= 10:
        return f"{value:.2f} s"
    return f"{value:.3f} s" if total_s >= 1 else f"{value * 1e3:.2f} ms"


def money(evaluation: Evaluation, width: int) -> list[str]:
    """The bill of materials, dearest first, and its sum; what is owned is listed at no price."""
    cents = any(abs(line.total_usd - round(line.total_usd)) > 1e-6 for line in evaluation.bill_of_materials)
    total = evaluation.capex_usd
    rows = [["count", "item", "each", "USD", "share"]]
    for line in sorted(evaluation.bill_of_materials, key=lambda line: -line.total_usd):
        part = share(line.total_usd / total) if total > 0 else ""
        rows.append([f"{line.count:,}", line.item, dollars(line.unit_usd, cents), dollars(line.total_usd, cents), part])
    rows.append(["", "in all", "", dollars(total, cents), ""])
    taken = sum(max(len(row[index]) for row in rows) for index in (0, 2, 3, 4)) + 10
    rows = [[row[0], clipped(row[1], max(16, width - taken)), *row[2:]] for row in rows]
    return ["Where the money goes", *columns(rows, "rlrrr")]


def _memory(figures: WorkloadEvaluation, width: int) -> list[str]:
    memory = figures.memory
    capacity = memory.capacity_bytes
    parts = sorted(memory.parts_bytes.items(), key=lambda part: -part[1])
    rows = [(name, _gigabytes(value), value / capacity) for name, value in parts if value / capacity >= LEAST_SHARE]
    free = capacity - memory.worst_rank_bytes
    if free > 0:
        rows.append(("free", _gigabytes(free), free / capacity))
    head = (
        f"Memory of the fullest GPU (stage {memory.worst_stage} of {len(memory.stages_bytes)}): "
        f"{_gigabytes(memory.worst_rank_bytes)} of {_gigabytes(capacity)}, {memory.verdict}"
    )
    return [*wrapped(head, width, indent=""), *bars(rows, width)]


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB"


def limit_lines(limits: Sequence[LimitCheck]) -> list[str]:
    """Each limit with what the design takes of it."""
    rows = []
    for check in limits:
        left = f"{abs(check.slack) * 100:.1f} % " + ("left" if check.kept else "over")
        rows.append(
            [check.name, figure(check.value, check.unit), "of", figure(check.most, check.unit), left]
            + ([""] if check.kept else ["broken"])
        )
    width = max(len(row) for row in rows)
    return columns([[*row, *[""] * (width - len(row))] for row in rows], "lrlrrl"[:width])


# --------------------------------------------------------------------------------------------------------- proof


def _proof(solution: Solution, width: int) -> list[str]:
    certificate = solution.certificate
    if certificate is None:
        return []
    name = OBJECTIVES.get(solution.instance.objective, solution.instance.objective)
    unit = solution.objective_unit
    lines = ["Certificate"]
    lines += columns(
        [
            [name, figure(certificate.value, unit), f"{digits(certificate.value, 7)} {unit}"],
            ["proven bound", figure(certificate.bound, unit), f"{digits(certificate.bound, 7)} {unit}"],
            ["gap", percent_up(certificate.gap), _reached(solution.status)],
        ],
        "lrl",
    )
    for proof in certificate.proofs:
        bound = "no bound" if proof.bound is None else f"bound {digits(proof.bound, 7)} {unit}"
        name = SOLVERS.get(proof.solver, proof.solver)
        lines += wrapped(f"{name}: {proof.status}, {bound}, {seconds(proof.wall_s)}", width)
    lines += wrapped(
        f"{_many(certificate.excluded, 'plan', 'plans')} with placement looked at, "
        f"{count(certificate.space_designs)} left to the solvers after arithmetic; "
        f"{_many(certificate.designs_evaluated, 'design', 'designs')} judged by the exact model; "
        f"{_many(certificate.iterations, 'master', 'masters')}, {_many(certificate.cuts, 'cut', 'cuts')}; "
        f"first design after {seconds(certificate.first_design_s)}, {seconds(certificate.wall_s)} in all; "
        f"seed {certificate.seed}, {_many(certificate.threads, 'thread', 'threads')}, "
        + ("repeatable" if certificate.deterministic else "may differ when run again"),
        width,
    )
    return lines


def _many(number: int, one: str, several: str) -> str:
    return f"{count(number)} {one if number == 1 else several}"


def _reached(status: str) -> str:
    return "the asked gap is reached" if status == "optimal" else "a limit came before the asked gap"


def _notes(notes: Sequence[str], width: int) -> list[str]:
    if not notes:
        return []
    return ["Notes", *(line for note in notes for line in wrapped(note, width, first="  - "))]
