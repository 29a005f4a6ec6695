"""Every term of the cost model for one answer: formula, inputs, value, source. Floor 6. In: a solution. Out: `Terms`.

The tree is the factored model's own: the very objects that are evaluated by numpy and laid into the solvers. Where the
exact model adds to it (the pipeline played event by event), the root says by how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from codesign.cost.assemble import CostModel
from codesign.design import DIMENSIONS, Design, Network, StoragePurchase
from codesign.design.evaluation import Evaluation
from codesign.exact.evaluate import Judge
from codesign.expr import Max, Monomial, Power, Scale, Sum, Table, Term, evaluate
from codesign.expr.decision import flat_index
from codesign.spec.instance import Instance


@dataclass(frozen=True)
class Input:
    """One table that a term multiplies: its value for the design, the choices that it depends on, and its formula."""

    name: str
    value: float
    unit: str
    choices: tuple[tuple[str, Any], ...]
    formula: str
    source: str


@dataclass(frozen=True)
class TermNode:
    """A term with its value; `kind` is product, sum, maximum or power. In a maximum `decides` marks what it takes."""

    name: str
    kind: str
    value: float
    unit: str
    coefficient: float
    inputs: tuple[Input, ...]
    children: tuple[TermNode, ...]
    decides: bool = True

    def walk(self, depth: int = 0) -> Iterator[tuple[int, TermNode]]:
        """The term and all below it, with their depth."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "value": self.value,
            "unit": self.unit,
            "coefficient": self.coefficient,
            "decides": self.decides,
            "inputs": [
                {
                    "name": one.name,
                    "value": one.value,
                    "unit": one.unit,
                    "choices": {name: _plain(value) for name, value in one.choices},
                    "formula": one.formula,
                    "source": one.source,
                }
                for one in self.inputs
            ],
            "children": [child.to_document() for child in self.children],
        }


@dataclass(frozen=True)
class Terms:
    """The trees of a design, and what the exact model says of the step beside the factored one."""

    trees: tuple[TermNode, ...]
    factored_step_s: float
    exact_step_s: float

    def to_document(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "terms": [tree.to_document() for tree in self.trees],
            "factored_step_time_s": self.factored_step_s,
            "exact_step_time_s": self.exact_step_s,
        }


def terms_of(instance: Instance, design: Design, evaluation: Evaluation | None = None) -> Terms:
    """All terms for a design: step time, purchase price, power, memory of the stages that can be fullest.

    Raises
    ------
    SpecError
        If the design is not one of the instance's space, with the choice that is not.
    """
    model = CostModel(instance)
    columns = codes(model, design)
    found = evaluation or Judge(instance).evaluate(design)
    roots: list[Term] = [model.step, model.capex, model.power, *model.memory]
    trees = tuple(_node(root, model, columns) for root in roots)
    exact_s = next(iter(found.workloads.values())).step_time_s
    return Terms(trees, trees[0].value, exact_s)


def codes(model: CostModel, design: Design) -> dict[str, np.ndarray[Any, np.dtype[np.intp]]]:
    """Codes of all decisions of a design, as columns of one row."""
    space, purchase = model.space, design.purchase
    _, network, storage = model.market.find(purchase)
    values: dict[str, Any] = {name: getattr(design.plan, name) for name in design.plan.__dataclass_fields__}
    values |= {f"{d}_layout": design.placement.layout(d) for d in DIMENSIONS}
    values |= {
        "server": purchase.server,
        "servers": purchase.servers,
        "used": design.placement.ranks_in("domain"),
        "leaf_block": design.placement.ranks_in("leaf"),
        "network": (network.network, network.owned_servers),
        "storage": (storage.purchase, storage.owned),
        "checkpoint_interval": purchase.checkpoint_interval_s,
    }
    return {name: np.array([space[name].code(value)], dtype=np.intp) for name, value in values.items()}


def _node(term: Term, model: CostModel, columns: dict[str, Any], factor: Monomial | None = None) -> TermNode:
    value = float(evaluate(term, columns)[0])
    if isinstance(term, Monomial):
        inputs = tuple(_input(table, model, columns) for table in term.factors)
        return TermNode(term.name, "product", value, term.unit, term.coefficient, inputs, ())
    if isinstance(term, Scale):
        inputs = tuple(_input(table, model, columns) for table in term.by.factors)
        child = _node(term.term, model, columns)
        return TermNode(term.name, "product", value, term.unit, term.by.coefficient, inputs, (child,))
    if isinstance(term, Power):
        return TermNode(term.name, "power", value, term.unit, 1.0, (), (_node(term.term, model, columns),))
    children = tuple(_node(child, model, columns) for child in term.terms)
    if isinstance(term, Max):
        most = max(child.value for child in children)
        children = tuple(_marked(child, child.value == most) for child in children)
        return TermNode(term.name, "maximum", value, term.unit, 1.0, (), children)
    assert isinstance(term, Sum)
    return TermNode(term.name, "sum", value, term.unit, 1.0, (), children)


def _marked(node: TermNode, decides: bool) -> TermNode:
    return TermNode(
        node.name, node.kind, node.value, node.unit, node.coefficient, node.inputs, node.children, decides=decides
    )


def _input(table: Table, model: CostModel, columns: dict[str, Any]) -> Input:
    if table.scope:
        index = flat_index(table.scope, table.values.shape, {name: columns[name] for name in table.scope})
        value = float(table.flat()[index][0])
    else:
        value = float(table.values)
    choices = tuple((name, model.space[name].values[int(columns[name][0])]) for name in table.scope)
    return Input(table.name, value, table.unit, choices, table.formula, table.source)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str) or value is None else str(value)


def text(found: Terms) -> str:
    """The trees as indented lines, each term once.

    What is zero is left out; what does not decide a maximum is told without what is below it.
    """
    lines: list[str] = []
    for tree in found.trees:
        _tell(tree, 0, lines, set())
        lines.append("")
    ratio = found.exact_step_s / found.factored_step_s - 1.0
    above = "the same as the terms" if ratio < 5e-5 else f"{ratio:.2%} above the terms"
    lines.append(f"The exact model, which plays the pipeline, has {found.exact_step_s:.6g} s a step: {above}.")
    return "\n".join(lines)


def _tell(node: TermNode, depth: int, lines: list[str], told: set[tuple[str, float]]) -> None:
    if node.value == 0.0 and depth:
        return
    again = bool(node.children) and (node.name, node.value) in told
    told.add((node.name, node.value))
    lines.append("  " * depth + _line(node) + ("  (as above)" if again else ""))
    if again or not node.decides:
        return
    lines.extend("  " * (depth + 1) + _inputs_line(one) for one in node.inputs)
    for child in node.children:
        _tell(child, depth + 1, lines, told)


def _line(node: TermNode) -> str:
    unit = f" {node.unit}" if node.unit else ""
    how = {"sum": "sum of", "maximum": "largest of", "power": "power of", "product": ""}[node.kind]
    scale = f"  [{node.coefficient:g} x ...]" if node.kind == "product" and node.coefficient != 1.0 else ""
    rest = "" if node.decides else "  (does not decide)"
    return f"{node.name} = {node.value:.6g}{unit}" + (f"  ({how})" if how else "") + scale + rest


def _inputs_line(one: Input) -> str:
    at = ", ".join(f"{name} {_shown(value)}" for name, value in one.choices)
    unit = f" {one.unit}" if one.unit else ""
    formula = f": {one.formula}" if one.formula else ""
    source = f"  [{one.source}]" if one.source else ""
    return f"x {one.value:.6g}{unit}  {one.name}" + (f" at {at}" if at else "") + formula + source


def _shown(value: Any) -> str:
    if isinstance(value, Network):
        return f"{value.kind} of {value.switch}" if value.switch else value.kind
    if isinstance(value, StoragePurchase):
        return f"{value.units} x {value.product}" if value.product else "none"
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value):
        return "x".join(map(str, value))
    if isinstance(value, tuple):
        return _shown(value[0])  # what is owned of it stands beside
    return str(value)
