"""Milliseconds that the exact model takes for one design of 16,384 GPUs: groups read off the rank map, pipeline played.

First: nothing is known from designs judged before. Then again, with the order of the pipeline known, as for most
designs within one solve.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from codesign import parse
from codesign.cost.assemble import CostModel
from codesign.design import Design
from codesign.exact import Judge
from codesign.solve.sample import random_designs

INSTANCE = """
schema: 1
name: sixteen-thousand
workloads: [{model: llama-3.1-405b, sequence_length: 8192, global_batch: 2048, plan: {recompute: [none, "full:2"]}}]
offers: none
inventory: [{server: hgx-h100, count: 2048, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
"""
GPUS = 16_384
DRAWN = 4000
ASKED_MS = 50.0


def distinct() -> list[Design]:
    """Random designs of all GPUs, each with an order of operations that no other has: none is known before."""
    model = CostModel(parse(INSTANCE))
    rows = random_designs(model, DRAWN, 1)
    found: dict[object, Design] = {}
    for row in range(DRAWN):
        design = model.decode(rows.columns, row)
        plan = design.plan
        if plan.world == GPUS:
            found.setdefault((plan.pp, plan.virtual_stages, plan.dp * plan.micro_batch), design)
    return list(found.values())


def main() -> int:
    instance, designs = parse(INSTANCE), distinct()
    times: dict[str, list[float]] = {"first": [], "order known": []}
    for design in designs:
        for name in times:
            judge = Judge(instance)
            started = time.perf_counter()
            judge.evaluate(design)
            times[name].append(1e3 * (time.perf_counter() - started))
    print(f"{len(designs)} random designs of {GPUS} GPUs   median    95 %   slowest")
    for name, found in times.items():
        middle, high, most = np.percentile(found, [50, 95, 100])
        print(f"{name:36s}{middle:6.1f}  {high:6.1f}  {most:6.1f} ms")
    slowest = designs[int(np.argmax(times["first"]))].plan
    print(f"slowest: pp {slowest.pp}, {slowest.virtual_stages} virtual stages, dp {slowest.dp} x {slowest.micro_batch}")
    print(f"asked {ASKED_MS:.0f}")
    return int(max(times["first"]) > ASKED_MS)


if __name__ == "__main__":
    sys.exit(main())
