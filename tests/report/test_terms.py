"""The terms of an answer: they add up, name their inputs, and are those that the exact model stands above."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from codesign import Limits, read, solve
from codesign.cli import main
from codesign.export.files import write
from codesign.report.terms import TermNode, terms_of, text


def check(node: TermNode) -> None:
    values = [child.value for child in node.children]
    if node.kind == "sum":
        assert node.value == pytest.approx(sum(values), rel=1e-12)
    elif node.kind == "maximum":
        assert node.value == max(values)
        assert any(child.decides for child in node.children)
    else:
        product = node.coefficient
        for one in node.inputs:
            product *= one.value
        for child in node.children:
            product *= child.value
        assert node.value == pytest.approx(product, rel=1e-12)
    for child in node.children:
        check(child)


@pytest.mark.parametrize("name", ["latent", "storage-8b", "unfused-13b", "leaves-8b"])
def test_terms_add_up_and_stay_below_the_exact_model(instances: Any, name: str) -> None:
    model, judge = instances.model(name), instances.judge(name)
    for seed in range(4):
        design = instances.design(name, seed)
        found = terms_of(model.instance, design, judge.evaluate(design))
        for tree in found.trees:
            check(tree)
        assert found.factored_step_s <= found.exact_step_s * (1 + 1e-12)


def test_every_table_of_the_step_says_its_formula(instances: Any) -> None:
    """A20, A02: formula and source of each input."""
    for name in ("latent", "storage-8b", "lora-70b"):
        found = terms_of(instances.instance(name), instances.design(name, 3))
        step, capex, power = found.trees[:3]
        for tree in (step, capex, power):
            for _, node in tree.walk():
                for one in node.inputs:
                    assert one.formula or one.name.startswith("1/"), one.name


def test_on_the_command_line(tmp_path: Any) -> None:
    solution = solve(read("instances/small/8b-half-empty-domain.yaml"), Limits(gap=0.0))
    write(solution, tmp_path)
    result = CliRunner().invoke(main, ["explain", str(tmp_path), "--terms"])
    assert result.exit_code == 0
    assert "pipeline = " in result.stdout
    assert "Korthikanti et al. 2022" in result.stdout
    assert "The exact model, which plays the pipeline, has" in result.stdout
    assert len(result.stdout.splitlines()) < 400
    document = CliRunner().invoke(main, ["explain", str(tmp_path), "--terms", "--json"])
    assert document.exit_code == 0
    assert '"factored_step_time_s"' in document.stdout


def test_text_tells_a_shared_term_once(instances: Any) -> None:
    shown = text(terms_of(instances.instance("owned-70b"), instances.design("owned-70b", 1)))
    assert shown.count("(as above)") >= 1
