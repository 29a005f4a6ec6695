"""Parallel plan, placement and purchase of a training cluster, decided together, with a proven gap.

This is the public list; all else may change between minor versions. Names load on first use, so that
importing the package imports no solver, and reading, judging or verifying a design never pays for one.

>>> from codesign import read, solve
>>> solution = solve(read("instance.yaml"))  # doctest: +SKIP
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from codesign.version import __version__

if TYPE_CHECKING:
    from codesign.design.certificate import Certificate
    from codesign.design.design import Design
    from codesign.design.evaluation import Evaluation
    from codesign.design.solution import Solution
    from codesign.errors import CodesignError, SpecError
    from codesign.exact.evaluate import evaluate
    from codesign.exact.verify import verify
    from codesign.report.explain import explain
    from codesign.solve.limits import Limits
    from codesign.solve.progress import Progress
    from codesign.solve.solve import solve
    from codesign.spec.instance import Instance, parse, read

__all__ = [
    "Certificate",
    "CodesignError",
    "Design",
    "Evaluation",
    "Instance",
    "Limits",
    "Progress",
    "Solution",
    "SpecError",
    "__version__",
    "evaluate",
    "explain",
    "parse",
    "read",
    "solve",
    "verify",
]

# The module that each public name is loaded from: the same as above, for Python; a test compares the two.
_HOMES = {
    "Certificate": "codesign.design.certificate",
    "CodesignError": "codesign.errors",
    "Design": "codesign.design.design",
    "Evaluation": "codesign.design.evaluation",
    "Instance": "codesign.spec.instance",
    "Limits": "codesign.solve.limits",
    "Progress": "codesign.solve.progress",
    "Solution": "codesign.design.solution",
    "SpecError": "codesign.errors",
    "evaluate": "codesign.exact.evaluate",
    "explain": "codesign.report.explain",
    "parse": "codesign.spec.instance",
    "read": "codesign.spec.instance",
    "solve": "codesign.solve.solve",
    "verify": "codesign.exact.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _PublicList(ModuleType):
    """Keeps ``codesign.solve`` the function, whichever is loaded first: it or the package of the same name.

    Python binds a package's name in its parent once it is loaded, which would hide the function. The modules
    of the package stay reachable as ``from codesign.solve.limits import Limits``.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _PublicList
