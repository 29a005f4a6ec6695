"""Designs a second through the whole step-time expression, on one core (numpy looks up and multiplies on one)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from codesign import read
from codesign.cost.assemble import CostModel
from codesign.expr import evaluate
from codesign.expr.term import monomials

INSTANCES = Path(__file__).parents[1] / "instances" / "reference"
DESIGNS = 1_000_000
ROUNDS = 3
ASKED_PER_S = 1e6


def main() -> int:
    generator = np.random.default_rng(0)
    print(f"{'instance':34s} {'monomials':>9s} {'decisions':>9s} {'million designs/s':>18s}")
    slowest = float("inf")
    for file in sorted(INSTANCES.glob("*.yaml")):
        model = CostModel(read(file))
        columns = {d.name: generator.integers(0, len(d), DESIGNS) for d in model.space.decisions}
        rates = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            evaluate(model.step, columns)
            rates.append(DESIGNS / (time.perf_counter() - started))
        slowest = min(slowest, max(rates))
        terms = len(list(monomials(model.step)))
        print(f"{file.stem:34s} {terms:9d} {len(model.space.decisions):9d} {max(rates) / 1e6:18.2f}")
    print(f"slowest {slowest / 1e6:.2f} million a second; asked {ASKED_PER_S / 1e6:.0f}")
    return int(slowest < ASKED_PER_S)


if __name__ == "__main__":
    sys.exit(main())
