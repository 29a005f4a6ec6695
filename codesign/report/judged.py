"""A design of the user's own with its evaluation, as a document. Floor 6. In: both. Out: what `evaluate --json` prints.

The parts stand under the same names as in a solution, so that one reader serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from codesign.design import Design
from codesign.design.evaluation import Evaluation
from codesign.design.solution import SCHEMA, Solution
from codesign.exact.verify import UNITS
from codesign.spec.instance import Instance


def judged_document(
    instance: Instance, design: Design, evaluation: Evaluation, filled: Sequence[str] = ()
) -> dict[str, Any]:
    """JSON-able form; what a design that cannot run does not have is None.

    Parameters
    ----------
    filled : what was completed because nothing was left to decide, in words.
    """
    unit = UNITS[instance.objective]
    # The status stands in no part that is taken from the document.
    whole = Solution("unknown", instance, unit, design, evaluation).to_document()
    value = evaluation.objective if isfinite(evaluation.objective) else None
    return {
        "schema": SCHEMA,
        "codesign": whole["codesign"],
        "keeps_all": evaluation.feasible,
        "violations": list(evaluation.violations),
        "filled": list(filled),
        "objective": {"name": instance.objective, "unit": unit, "value": value},
        "design": whole["design"],
        "evaluation": whole["evaluation"],
        "instance": whole["instance"],
        "instance_digest": whole["instance_digest"],
    }
