"""Explanations: what binds, what one other choice does, and verdicts on alternatives that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from pathlib import Path

import pytest

from codesign import evaluate, explain, parse, read, solve
from codesign.design.certificate import Certificate
from codesign.design.solution import Solution
from codesign.errors import SpecError, StaleSolutionError
from codesign.exact.verify import GREATER_IS_BETTER
from codesign.export.files import write
from codesign.report.alternative import Alternative, compared
from codesign.report.explain import Explanation
from codesign.report.explain_text import explanation

ROOT = Path(__file__).parents[2]
OWNED = """
schema: 1
name: owned
workloads:
  - model: llama-3.1-8b
    sequence_length: 8192
    global_batch: 32
    plan: {zero: [0, 1], micro_batch: [1, 2], cp: 1}
offers: none
inventory:
  - {server: hgx-h100, count: 2, fabric: fat-tree, switch: quantum2-qm9700}
objective: tokens_per_s
"""


@pytest.fixture(scope="module")
def owned() -> Solution:
    return solve(parse(OWNED))


@pytest.fixture(scope="module")
def bought() -> Solution:
    return solve(read(ROOT / "instances" / "small" / "8b-buy-network.yaml"))


@pytest.fixture(scope="module")
def explanations(owned: Solution, bought: Solution) -> list[Explanation]:
    return [
        explain(owned),
        explain(bought),
        explain(owned, ["plan.tp=16", ["plan.tp=1", "plan.pp=1", "plan.zero=0"], "plan.recompute=full"]),
        explain(bought, ["limits.gpus=8", "offers.storage=[]"]),
    ]


def one(solution: Solution, *overrides: str) -> Alternative:
    return compared(solution, overrides)


def certified(solution: Solution) -> Certificate:
    assert solution.certificate is not None
    return solution.certificate


class TestWithoutAlternatives:
    def test_limits_stand_where_the_evaluation_puts_them(self, bought: Solution) -> None:
        found = explain(bought)
        assert bought.evaluation is not None
        checks = {check.name: check for check in bought.evaluation.limits}
        for standing in found.limits:
            if standing.name in checks:
                assert standing.value == checks[standing.name].value
            assert standing.slack == pytest.approx((standing.most - standing.value) / standing.most)
            assert standing.binds == (standing.slack < 0.01)
        assert [standing.name for standing in found.limits] == ["capex", "gpus", "memory"]

    def test_a_limit_that_is_reached_binds(self, bought: Solution) -> None:
        # limits.gpus is 32, four servers of eight
        assert bought.design is not None
        (gpus,) = [standing for standing in explain(bought).limits if standing.name == "gpus"]
        assert gpus.binds == (bought.design.purchase.servers == 4)

    def test_neighbours_are_single_changes_judged_again(self, bought: Solution) -> None:
        assert bought.design is not None
        found = explain(bought).neighbours
        assert len(found) == len({(each.name, each.there) for each in found})
        plans = [each for each in found if each.name.startswith("plan.")]
        assert plans
        for each in plans:
            field = each.name.removeprefix("plan.")
            assert getattr(bought.design.plan, field) == each.here != each.there
            changed = replace(bought.design, plan=replace(bought.design.plan, **{field: each.there}))
            evaluation = evaluate(bought.instance, changed)
            assert each.violations == evaluation.violations
            assert each.worse == pytest.approx(evaluation.objective / certified(bought).value - 1)

    def test_no_neighbour_is_better_than_the_bound(self, bought: Solution, owned: Solution) -> None:
        for solution in (bought, owned):
            certificate = certified(solution)
            for each in explain(solution).neighbours:
                if not each.violations:
                    assert each.worse is not None
                    assert each.worse >= -certificate.gap * (1 + 1e-9)

    def test_neighbours_stay_inside_what_is_stated(self, owned: Solution) -> None:
        stated = {"plan.zero": {0, 1}, "plan.micro_batch": {1, 2}}
        for each in explain(owned).neighbours:
            if each.name in stated:
                assert each.there in stated[each.name]

    def test_one_more_server(self, bought: Solution, owned: Solution) -> None:
        assert bought.evaluation is not None
        more = explain(bought).one_more_server
        server = next(line for line in bought.evaluation.bill_of_materials if line.item == "hgx-h100")
        assert more is not None
        assert more.capex_usd >= server.unit_usd
        assert more.power_w > 0
        assert explain(owned).one_more_server is None  # both are in use, and none is offered

    def test_one_more_server_than_are_owned_on_a_network_that_is_bought(self) -> None:
        text = OWNED.replace("offers: none", "offers: {servers: [], storage: []}").replace(
            ", fabric: fat-tree, switch: quantum2-qm9700", ""
        )
        solution = solve(parse(text))
        assert solution.design is not None
        assert solution.design.purchase.servers == 2
        assert explain(solution).one_more_server is None

    def test_an_answer_without_a_design(self) -> None:
        solution = solve(read(ROOT / "instances" / "infeasible" / "70b-on-one-server.yaml"))
        found = explain(solution)
        assert (found.limits, found.neighbours, found.one_more_server) == ((), (), None)
        assert "Nothing fits" in explanation(found)
        assert found.to_document()["conflict"]["limits"]


class TestAlternatives:
    def test_worse_is_proven_by_the_bound(self, owned: Solution) -> None:
        found = one(owned, "plan.recompute=full")
        assert (found.verdict, found.solution is not None) == ("worse", True)
        assert found.solution is not None
        here, there = certified(owned), certified(found.solution)
        # tokens per second: greater is better, so that worse is less
        assert owned.instance.objective in GREATER_IS_BETTER
        assert found.at_least_worse == pytest.approx((here.value - there.bound) / here.value)
        assert found.found_worse == pytest.approx((here.value - there.value) / here.value)
        assert found.at_least_worse is not None
        assert found.found_worse is not None
        assert 0 < found.at_least_worse <= found.found_worse

    def test_the_differences_add_up(self, owned: Solution) -> None:
        found = one(owned, "plan.recompute=full")
        totals = {each.name: each for each in found.totals}
        step = totals["step_time_s"]
        assert fsum(each.there - each.here for each in found.step_s) == pytest.approx(step.there - step.here)
        assert any(each.name == "recompute" and each.here == 0 < each.there for each in found.step_s)
        assert any((each.name, each.there) == ("plan.recompute", "full") for each in found.choices)

    def test_the_bills_add_up(self, bought: Solution) -> None:
        found = one(bought, "limits.gpus=8")
        totals = {each.name: each for each in found.totals}
        capex = totals["capex_usd"]
        assert capex.there < capex.here
        assert fsum(each.there - each.here for each in found.bill_usd) == pytest.approx(capex.there - capex.here)

    def test_what_the_answer_keeps_already(self, owned: Solution) -> None:
        assert owned.design is not None
        found = one(owned, f"plan.tp={owned.design.plan.tp}", f"plan.pp={owned.design.plan.pp}")
        assert (found.verdict, found.at_least_worse, found.choices) == ("same", None, ())

    def test_illegal_names_the_rule(self, owned: Solution) -> None:
        found = one(owned, "plan.tp=16")  # 8 key and value heads, which Megatron does not replicate
        assert (found.verdict, found.solution) == ("illegal", None)
        assert "tp 16 does not divide the 8 key and value heads of llama-3.1-8b" in found.reasons[0]

    def test_infeasible_names_the_limits(self, owned: Solution) -> None:
        # 8e9 parameters at 18 bytes are 144 GB without sharding, and a GPU has 80 GB
        found = one(owned, "plan.tp=1", "plan.pp=1", "plan.zero=0")
        assert found.verdict == "infeasible"
        assert found.reasons[0].startswith("no design keeps ")
        assert "plan.tp" in found.reasons[0]

    def test_better_says_what_was_relaxed(self, bought: Solution) -> None:
        narrow = solve(
            bought.instance.model_copy(update={"limits": bought.instance.limits.model_copy(update={"gpus": 16})})
        )
        found = one(narrow, "limits.gpus=32")
        assert found.verdict == "better"
        assert found.found_worse is not None
        assert found.found_worse < 0
        assert any("gpus" in reason and "16" in reason for reason in found.reasons)

    def test_better_says_which_value_the_instance_excludes(self) -> None:
        pinned = solve(parse(OWNED, overrides=["plan.recompute=full"]))
        found = one(pinned, "plan.recompute=[none, full]")
        assert found.verdict == "better"
        assert found.reasons == ("plan.recompute is none, and the instance states full",)

    def test_another_question_is_not_compared(self, owned: Solution) -> None:
        for override in ("global_batch=64", "objective=step_time"):
            found = one(owned, override)
            assert (found.verdict, found.at_least_worse, found.found_worse) == ("another question", None, None)

    def test_several_overrides_hold_together_and_several_alternatives_apart(self, owned: Solution) -> None:
        found = explain(owned, ["plan.tp=1", ("plan.tp=4", "plan.zero=0")])
        assert [each.overrides for each in found.alternatives] == [("plan.tp=1",), ("plan.tp=4", "plan.zero=0")]

    def test_an_override_that_is_none_is_the_users_mistake(self, owned: Solution) -> None:
        with pytest.raises(SpecError, match=r"plan\.tq"):
            explain(owned, ["plan.tq=1"])

    def test_a_gap_that_leaves_room_proves_nothing(self, owned: Solution, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same answer with a bound that is worth nothing: worse as found, but not proven."""
        from codesign.report import alternative

        there = one(owned, "plan.recompute=full").solution
        assert there is not None
        loose = replace(there, certificate=replace(certified(there), bound=certified(owned).value * 2))
        verdict, _, at_least, found = alternative._judged(owned, loose)
        assert (verdict, at_least) == ("not better", None)
        assert found is not None
        assert found > 0


class TestFiles:
    def test_a_folder_and_a_file(self, owned: Solution, tmp_path: Path) -> None:
        write(owned, tmp_path)
        here = explain(owned).to_document()
        assert explain(tmp_path).to_document() == here
        assert explain(str(tmp_path / "solution.json")).to_document() == here

    def test_an_altered_file(self, owned: Solution, tmp_path: Path) -> None:
        write(owned, tmp_path)
        file = tmp_path / "solution.json"
        file.write_text(file.read_text().replace('"mfu": 0.', '"mfu": 0.9'))
        with pytest.raises(StaleSolutionError, match="is not what a fresh computation gives"):
            explain(file)


class TestText:
    @pytest.mark.parametrize("unicode", [True, False])
    def test_no_line_is_too_wide(self, explanations: list[Explanation], unicode: bool) -> None:
        for found in explanations:
            for width in range(72, 121):
                text = explanation(found, width, unicode)
                assert max(len(line) for line in text.split("\n")) <= width
                assert unicode or text.isascii()

    def test_a_disadvantage_is_rounded_down(self, owned: Solution) -> None:
        base = explain(owned, ["plan.recompute=full"])
        (found,) = base.alternatives
        text = explanation(replace(base, alternatives=(replace(found, at_least_worse=0.01239),)))
        assert "With plan.recompute=full: every design is at least 1.2 % slower; tokens per second" in " ".join(
            text.split()
        )

    def test_what_has_room_is_said(self, bought: Solution) -> None:
        base = explain(bought)
        roomy = tuple(replace(each, slack=0.5, binds=False) for each in base.limits)
        assert "No limit binds: each has 1 % or more left." in explanation(replace(base, limits=roomy))
        assert "binds" in explanation(replace(base, limits=tuple(replace(each, binds=True) for each in base.limits)))
