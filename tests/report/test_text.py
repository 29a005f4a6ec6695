"""The report of a solution: pieces of it with figures made by hand, its widths, and what it says when nothing fits."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from codesign import read, solve
from codesign.design import Design, Layout, Network, Placement, Plan, Purchase, StoragePurchase
from codesign.design.certificate import Certificate, Proof
from codesign.design.evaluation import BillLine, Evaluation, LimitCheck, Memory, WorkloadEvaluation
from codesign.design.solution import NOT_ENOUGH, Conflict, Solution
from codesign.report.text import certificate_sentence, conflict_lines, evaluation_summary, limit_lines, summary
from codesign.spec.instance import parse

ROOT = Path(__file__).parents[2]

INSTANCE_TEXT = """
schema: 1
name: by-hand
workloads:
  - {model: llama-3.1-8b, sequence_length: 8192, global_batch: 64, tokens: 1T}
offers:
  servers: [hgx-h100]
limits: {capex: $1M, power: 40kW}
objective: time_to_train
"""
INSTANCE = parse(INSTANCE_TEXT)
NETWORK = Network("rail-only", 1, "quantum2-qm9700", 1, "cx7-400g")
DESIGN = Design(
    "pretrain",
    Plan(tp=4, cp=1, ep=1, pp=1, dp=4, virtual_stages=1, micro_batch=2, recompute="none", zero=1),
    Placement(Layout(4, 1, 1), Layout(1, 1, 1), Layout(1, 1, 1), Layout(2, 2, 1)),
    Purchase("hgx-h100", 2, NETWORK, StoragePurchase("weka-pod8", 1), 600.0),
)
FIGURES = WorkloadEvaluation(
    step_time_s=2.0,
    tokens_per_s=262144.0,
    mfu=0.412,
    hfu=0.412,
    goodput=0.98,
    time_to_train_s=3.456e6,  # 40 days
    memory=Memory(0, 60e9, 80e9, "fits", {"weights": 40e9, "activations": 20e9, "nothing": 0.0}, (60e9,)),
    breakdown_s={"compute": 1.5, "tensor-parallel communication": 0.4999, "optimizer": 0.0001, "idle": 0.0},
    bubble_fraction=0.0,
    checkpoint_save_s=2.0,
    checkpoint_load_s=1.0,
    interruption_s=86400.0 * 20,
)
EVALUATION = Evaluation(
    objective=3.456e6,
    minimised=3.456e6,
    capex_usd=995000.0,
    power_w=30000.0,
    total_cost_usd=1.2e6,
    bill_of_materials=(
        BillLine("hgx-h100", 2, 310000.0, 620000.0, 20000.0),
        BillLine("weka-pod8", 1, 375000.0, 375000.0, 5000.0),
    ),
    workloads={"pretrain": FIGURES},
    limits=(LimitCheck("capex", 995000.0, 1e6, "USD", True), LimitCheck("power", 30000.0, 40000.0, "W", True)),
    violations=(),
)
CERTIFICATE = Certificate(
    value=3.456e6,
    bound=3.4549e6,
    gap=(3.456e6 - 3.4549e6) / 3.456e6,  # 1100 / 3456000 = 0.0318287 %
    proven_by=("cp-sat", "highs"),
    proofs=(Proof("cp-sat", "optimal", 3.4549e6, 1.5), Proof("highs", "optimal", 3.4551e6, 2.5)),
    iterations=3,
    cuts=1,
    designs_evaluated=1234,
    space_designs=56,
    excluded=78901,
    wall_s=9.0,
    first_design_s=0.25,
    seed=7,
    threads=1,
    deterministic=True,
)
SOLUTION = Solution("optimal", INSTANCE, "s", DESIGN, EVALUATION, CERTIFICATE, notes=("a note",))


def flat(text: str) -> str:
    """The text on one line, however it was wrapped."""
    return " ".join(text.split())


class TestSummary:
    def test_it_opens_with_purchase_speed_and_proof(self) -> None:
        text = summary(SOLUTION, width=120)
        name, head = text.split("\n\n")[:2]
        assert name == "by-hand"
        assert flat(head) == (
            "Buy 2 × hgx-h100 (16 GPUs), on a rail-only network of quantum2-qm9700, with 1 × weka-pod8: "
            "$995.0 k, 30.0 kW. "
            "Trains llama-3.1-8b on 1.00 T tokens in 40.0 days, 262 ktokens/s at 41.2 % MFU, "
            "$1.200 M with electricity. "
            # 0.0318287 % up to two figures
            "No design of the stated space is better by more than 0.032 %, proven by CP-SAT and HiGHS."
        )

    def test_what_is_owned_is_used_and_not_bought(self) -> None:
        text = "inventory:\n  - {server: hgx-h100, count: 1, fabric: rail-only, switch: quantum2-qm9700}\n"
        owned = parse(INSTANCE_TEXT + text)
        assert "Use 1 × hgx-h100 that you own and buy 1 × hgx-h100 (16 GPUs)" in flat(
            summary(replace(SOLUTION, instance=owned))
        )

    def test_time_money_and_memory(self) -> None:
        lines = [line.split() for line in summary(SOLUTION, width=80).split("\n")]
        text = [" ".join(line) for line in lines]
        assert "compute 1.500 s 75.0 % ████████████████████████████" in "\n".join(text)
        assert any(line.startswith("tensor-parallel communication 0.500 s 25.0 %") for line in text)
        assert "a step 2.000 s" in text
        assert not any(line.startswith("optimizer") for line in text)  # 0.005 %: it would read 0.0 %
        assert "2 hgx-h100 310,000 620,000 62.3 %" in text  # 620 / 995
        assert "1 weka-pod8 375,000 375,000 37.7 %" in text
        assert "in all 995,000" in text
        assert "Memory of the fullest GPU (stage 0 of 1): 60.00 GB of 80.00 GB, fits" in text
        assert any(line.startswith("weights 40.00 GB 50.0 %") for line in text)
        assert any(line.startswith("free 20.00 GB 25.0 %") for line in text)

    def test_limits_and_certificate(self) -> None:
        text = [" ".join(line.split()) for line in summary(SOLUTION, width=120).split("\n")]
        assert "capex $995.0 k of $1.000 M 0.5 % left" in text
        assert "power 30.0 kW of 40.0 kW 25.0 % left" in text
        assert "time to train 40.0 days 3,456,000 s" in text
        assert "gap 0.032 % the asked gap is reached" in text
        assert "HiGHS: optimal, bound 3,455,100 s, 2.50 s" in text
        assert "- a note" in text

    @pytest.mark.parametrize("width", range(80, 121))
    @pytest.mark.parametrize("unicode", [True, False])
    def test_no_line_is_too_wide(self, width: int, unicode: bool) -> None:
        text = summary(SOLUTION, width, unicode)
        assert max(len(line) for line in text.split("\n")) <= width
        assert unicode or text.isascii()

    def test_ascii_says_the_same(self) -> None:
        ascii_words = [word for word in summary(SOLUTION, 80, unicode=False).split() if word.isalnum()]
        words = summary(SOLUTION, 80).replace("×", "x").split()
        assert ascii_words == [word for word in words if word.isascii() and word.isalnum()]


class TestNothing:
    def test_a_conflict(self) -> None:
        conflict = Conflict(
            ("limits.capex", "limits.deadline"),
            {"limits.capex": "from $1M to $1.25M", "limits.deadline": "from 30 days to 41 days"},
        )
        text = summary(Solution("infeasible", INSTANCE, "s", conflict=conflict))
        assert flat(text).startswith(
            "by-hand Nothing fits: no design of the stated space keeps limits.capex and limits.deadline together."
        )
        assert "  - limits.capex: from $1M to $1.25M\n" in text
        assert "  - limits.deadline: from 30 days to 41 days\n" in text

    def test_one_limit_alone(self) -> None:
        lines = conflict_lines(Conflict(("limits.power",), {"limits.power": "from 1 kW to 11 kW"}), 80)
        assert lines[0] == "  Nothing fits: no design of the stated space keeps limits.power."
        assert lines[-1] == "  - limits.power: from 1 kW to 11 kW"

    def test_the_limit_came_first(self) -> None:
        assert "that none exists is not proven" in flat(summary(Solution("unknown", INSTANCE, "s")))


class TestSentences:
    def test_a_gap_is_rounded_up(self) -> None:
        assert "by more than 0.13 %" in certificate_sentence(replace(CERTIFICATE, gap=0.00121))

    def test_who_proved_it(self) -> None:
        assert certificate_sentence(replace(CERTIFICATE, proven_by=("cp-sat",), gap=0.0)) == (
            "No design of the stated space is better, proven by CP-SAT."
        )
        assert "cut short by a limit" in certificate_sentence(replace(CERTIFICATE, proven_by=()))

    def test_a_broken_limit(self) -> None:
        (line,) = limit_lines([LimitCheck("capex", 1.2e6, 1e6, "USD", False)])
        assert line.split() == ["capex", "$1.200", "M", "of", "$1.000", "M", "20.0", "%", "over", "broken"]


class TestEvaluationSummary:
    def test_what_is_broken_comes_first_and_what_was_filled_last(self) -> None:
        broken = replace(EVALUATION, violations=("capex: too much", "memory: too full"))
        text = evaluation_summary(INSTANCE, DESIGN, broken, filled=("plan.dp = 4: what fills the servers",))
        lines = text.split("\n")
        assert lines[2:5] == ["  This design breaks 2 rules or limits:", "  - capex: too much", "  - memory: too full"]
        assert lines[-3:] == ["Completed", "  - plan.dp = 4: what fills the servers", ""]

    def test_nothing_broken(self) -> None:
        assert (
            evaluation_summary(INSTANCE, DESIGN, EVALUATION).split("\n")[2]
            == "  This design keeps every rule and limit."
        )

    def test_a_design_that_cannot_run_has_no_times(self) -> None:
        text = evaluation_summary(INSTANCE, DESIGN, replace(EVALUATION, workloads={}, violations=("x: y",)))
        assert "Where the time" not in text
        assert "Where the money goes" in text


@pytest.mark.parametrize("width", [72, 80, 97, 120])
@pytest.mark.parametrize("name", ["8b-owned-and-bought", "13b-deepspeed", "8b-half-empty-domain"])
def test_no_line_of_a_real_summary_is_too_wide(name: str, width: int) -> None:
    text = summary(solved(name), width)
    assert max(len(line) for line in text.splitlines()) <= width
    ascii_text = summary(solved(name), width, unicode=False)
    assert ascii_text.isascii()
    assert all(line == line.rstrip() for line in ascii_text.splitlines())


@pytest.mark.parametrize("name", ["8b-owned-and-bought", "13b-deepspeed", "8b-half-empty-domain"])
def test_the_parts_of_a_step_add_up_by_eye(name: str) -> None:
    lines = summary(solved(name), 100).split("Where the time of a step goes\n")[1].split("\n\n")[0].splitlines()
    numbers = [float(found.group(1)) for line in lines if (found := re.search(r"([\d.]+) m?s\b", line))]
    *parts, total = numbers
    assert sum(parts) == pytest.approx(total, abs=0.011 * len(parts))


def test_moves_that_are_not_enough_are_told_apart() -> None:
    lines = conflict_lines(
        Conflict(
            ("limits.capex", "limits.power"), {"limits.capex": "from $1M to $2M", "limits.power": f"a{NOT_ENOUGH}"}
        ),
        80,
    )
    text = "\n".join(lines)
    assert (
        text.index("This would do:")
        < text.index("from $1M")
        < text.index("alone would not")
        < text.index("- limits.power: a")
    )
    assert "more has to move" not in text


@cache
def solved(name: str) -> Solution:
    return solve(read(ROOT / "instances" / "small" / f"{name}.yaml"))
