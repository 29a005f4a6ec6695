"""The solution: instance, design, evaluation, certificate and provenance in one document. Floor 2.

A solution file holds the whole instance with every hardware figure, so that it can be verified years later without the
catalogue. Reading refuses a file of another schema, and anything that is not such a document. A digest over the whole
document is part of it, so that an alteration shows in what cannot be computed again as well, such as the bound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from codesign.design.certificate import Certificate, Proof
from codesign.design.design import Design
from codesign.design.evaluation import BillLine, Evaluation, LimitCheck, Memory, WorkloadEvaluation
from codesign.errors import StaleSolutionError
from codesign.spec.instance import Instance
from codesign.version import __version__

SCHEMA = 1
SOLUTION_FILE = "solution.json"


NOT_ENOUGH = "; then other limits conflict, so that more has to move"
"""How a move of `Conflict` ends that does not make a design possible by itself."""


@dataclass(frozen=True)
class Conflict:
    """Why nothing fits: a smallest set of limits that exclude each other.

    Attributes
    ----------
    limits : names of the members; without any one of them there is a design.
    moves : for each member, the least (or for a pin, the freed) value at which it would no longer conflict, in words.
    """

    limits: tuple[str, ...]
    moves: Mapping[str, str]


@dataclass(frozen=True)
class Solution:
    """The answer to an instance.

    `status` is "optimal" (within the asked gap), "feasible" (a limit came first), "infeasible" or "unknown".
    """

    status: str
    instance: Instance
    objective_unit: str
    design: Design | None = None
    evaluation: Evaluation | None = None
    certificate: Certificate | None = None
    conflict: Conflict | None = None
    notes: tuple[str, ...] = ()
    version: str = __version__

    def to_document(self) -> dict[str, Any]:
        """The document of `solve --json` and of the solution file."""
        document = {
            "schema": SCHEMA,
            "codesign": self.version,
            "status": self.status,
            "objective": self._objective(),
            "design": self._design(),
            "evaluation": _evaluation(self.evaluation),
            "proof": self._proof(),
            "conflict": None
            if self.conflict is None
            else {"limits": list(self.conflict.limits), "moves": dict(self.conflict.moves)},
            "notes": list(self.notes),
            "instance": self.instance.to_document(),
            "instance_digest": self.instance.digest(),
        }
        return {**document, "digest": document_digest(document)}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Solution:
        """The solution that `to_document` wrote, as it stands there: nothing is computed again (`verify` does that).

        Raises
        ------
        KeyError, TypeError, ValueError
            If the document is not of that form.
        SpecError
            If its instance is not one.
        """
        conflict = document["conflict"]
        return Solution(
            status=document["status"],
            instance=Instance.from_document(document["instance"]),
            objective_unit=document["objective"]["unit"],
            design=design_of(document),
            evaluation=evaluation_of(document),
            certificate=certificate_of(document),
            conflict=None if conflict is None else Conflict(tuple(conflict["limits"]), dict(conflict["moves"])),
            notes=tuple(document["notes"]),
            version=document["codesign"],
        )

    def _objective(self) -> dict[str, Any]:
        certificate = self.certificate
        return {
            "name": self.instance.objective,
            "unit": self.objective_unit,
            "value": None if certificate is None else certificate.value,
            "bound": None if certificate is None else certificate.bound,
            "gap": None if certificate is None else certificate.gap,
        }

    def _design(self) -> dict[str, Any] | None:
        if self.design is None or self.evaluation is None:
            return None
        document = self.design.to_document()
        purchase = document["purchase"]
        return {
            "purchase": {
                "servers": [{"offer": purchase["server"], "count": purchase["servers"]}],
                "network": purchase["network"],
                "storage": purchase["storage"],
                "checkpoint_interval_s": purchase["checkpoint_interval_s"],
                "bill_of_materials": [
                    {
                        "item": line.item,
                        "count": line.count,
                        "unit_usd": line.unit_usd,
                        "total_usd": line.total_usd,
                        "power_w": line.power_w,
                    }
                    for line in self.evaluation.bill_of_materials
                ],
                "capex_usd": self.evaluation.capex_usd,
                "power_w": self.evaluation.power_w,
            },
            "workloads": {
                document["workload"]: {
                    "plan": document["plan"],
                    "placement": {
                        "order": "tp-cp-dp-pp",
                        "layout": document["placement"],
                        "rank_map": "rank_map.csv",
                    },
                }
            },
        }

    def _proof(self) -> dict[str, Any] | None:
        if self.certificate is None:
            return None
        document = self.certificate.to_document()
        for name in ("value", "bound", "gap"):
            del document[name]
        return {**document, "proofs": [dict(proof) for proof in document["proofs"]]}


def _evaluation(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    document = evaluation.to_document()
    del document["bill_of_materials"]
    document["limits"] = [dict(limit) for limit in document["limits"]]
    document["violations"] = list(document["violations"])
    return document


def design_of(document: Mapping[str, Any]) -> Design | None:
    """The design in a solution document.

    Raises
    ------
    KeyError, TypeError
        If the document is not of the form that `to_document` writes.
    """
    written = document["design"]
    if written is None:
        return None
    purchase = written["purchase"]
    (workload, both), *more = written["workloads"].items()
    (server,), purchased = purchase["servers"], purchase
    if more:
        raise TypeError("more than one workload")
    return Design.from_document(
        {
            "workload": workload,
            "plan": both["plan"],
            "placement": both["placement"]["layout"],
            "purchase": {
                "server": server["offer"],
                "servers": server["count"],
                "network": purchased["network"],
                "storage": purchased["storage"],
                "checkpoint_interval_s": purchased["checkpoint_interval_s"],
            },
        }
    )


def evaluation_of(document: Mapping[str, Any]) -> Evaluation | None:
    """The evaluation in a solution document, as it stands there. KeyError or TypeError if it is not of that form."""
    written = document["evaluation"]
    if written is None:
        return None
    lines = document["design"]["purchase"]["bill_of_materials"]
    return Evaluation(
        **{
            **written,
            "bill_of_materials": tuple(BillLine(**line) for line in lines),
            "workloads": {
                name: WorkloadEvaluation(
                    **{**figures, "memory": _memory(figures["memory"]), "breakdown_s": dict(figures["breakdown_s"])}
                )
                for name, figures in written["workloads"].items()
            },
            "limits": tuple(LimitCheck(**limit) for limit in written["limits"]),
            "violations": tuple(written["violations"]),
        }
    )


def _memory(written: Mapping[str, Any]) -> Memory:
    return Memory(
        **{
            **written,
            "parts_bytes": dict(written["parts_bytes"]),
            "stages_bytes": tuple(written["stages_bytes"]),
        }
    )


def certificate_of(document: Mapping[str, Any]) -> Certificate | None:
    """The certificate in a solution document. KeyError or TypeError if it is not of that form."""
    written, objective = document["proof"], document["objective"]
    if written is None:
        return None
    return Certificate(
        **{
            **{name: objective[name] for name in ("value", "bound", "gap")},
            **written,
            "proven_by": tuple(written["proven_by"]),
            "proofs": tuple(Proof(**proof) for proof in written["proofs"]),
        }
    )


# ----------------------------------------------------------------------------------------------------- the file


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document without its own `digest`; the same however the JSON is indented, ordered or spelt.

    A number counts by its value: 8, 8.0 and 8e0 are one, so that a file may go through tools that respell numbers.
    """
    plain = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(_canonical(plain), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _canonical(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(one) for one in value]
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        return int(value)
    return value


def read_text(path: Path) -> tuple[Path, bytes]:
    """The file of a solution (or of the folder that holds one) and its bytes.

    Raises
    ------
    StaleSolutionError
        If there is no such file, or it cannot be read.
    """
    file = path / SOLUTION_FILE if path.is_dir() else path
    try:
        return file, file.read_bytes()
    except FileNotFoundError:
        raise StaleSolutionError(
            f"{file}: there is no such file; give a solution file or the folder of --out"
        ) from None
    except OSError as problem:
        raise StaleSolutionError(f"{file}: cannot be read ({problem.strerror})") from None


def parse_document(content: bytes, name: str) -> dict[str, Any]:
    """The document in the bytes of a solution file; strict JSON, in which no key may come twice.

    Raises
    ------
    StaleSolutionError
        If it is no solution, or of a schema that this version does not know.
    """
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise StaleSolutionError(f"{name}: is not JSON ({problem})") from None
    if not isinstance(document, dict) or "schema" not in document or "instance" not in document:
        raise StaleSolutionError(f"{name}: is not a codesign solution (no 'schema' and 'instance' in it)")
    if type(document["schema"]) is not int or document["schema"] != SCHEMA:
        raise StaleSolutionError(
            f"{name}: schema {document['schema']!r} is not known to codesign {__version__}, which reads schema {SCHEMA}"
        )
    return document


def read_document(path: Path) -> dict[str, Any]:
    """The document in a solution file (or in a folder that holds one).

    Raises
    ------
    StaleSolutionError
        If it is missing, unreadable, no solution, or of a schema that this version does not know.
    """
    file, content = read_text(path)
    return parse_document(content, str(file))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {name!r} comes twice in one object")
        found[name] = value
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")
