"""Decisions, tables, and generalised posynomials over them. Floor 1; knows nothing of GPUs.

A *decision* is a choice from a finite list. A *table* gives a number for each joint choice of a few decisions.
A *monomial* is a product of tables; sums and maxima of monomials are generalised posynomials (Boyd et al.,
"A tutorial on geometric programming", Optimization and Engineering 8, 2007). One term object is evaluated by
numpy (`evaluate`), bounded over sets of designs (`bounds`) and laid into a solver model (by `codesign.relax`).
"""

from codesign.expr.bounds import Reducer, box_bounds
from codesign.expr.decision import Columns, Decision, Space
from codesign.expr.evaluate import evaluate
from codesign.expr.relation import Relation, join, project
from codesign.expr.term import Max, Monomial, Power, Scale, Sum, Table, Term

__all__ = [
    "Columns",
    "Decision",
    "Max",
    "Monomial",
    "Power",
    "Reducer",
    "Relation",
    "Scale",
    "Space",
    "Sum",
    "Table",
    "Term",
    "box_bounds",
    "evaluate",
    "join",
    "project",
]
