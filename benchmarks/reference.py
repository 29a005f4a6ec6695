"""The reference instances: gap, time, first design, memory, and the ratio to vectorised exhaustive search.

Each instance is solved in a process of its own, so that its peak memory is its own. Exhaustive search evaluates the
relaxed objective, limits and memory of every design in bulk, with the same expressions; where that would take longer
than the solve by far, its time is the number of designs over the rate measured on a part of them (marked ~).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from codesign import Limits, read, solve
from codesign.cost.assemble import CostModel
from codesign.expr import evaluate
from codesign.solve.exhaustive import designs_of, number_of_designs

INSTANCES = Path(__file__).parents[1] / "instances" / "reference"
GAP, TIME_S, FIRST_S, MEMORY_BYTES = 1e-3, 20.0, 3.0, 1.5e9
MEASURED_DESIGNS = 2_000_000


def measure(file: Path) -> dict[str, object]:
    """One instance, solved and then searched in bulk."""
    started = time.perf_counter()
    solution = solve(read(file), Limits(gap=GAP, threads=1))
    wall_s = time.perf_counter() - started
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    certificate = solution.certificate
    assert certificate is not None, solution.status
    model = CostModel(solution.instance)
    designs = number_of_designs(model)
    rate, whole = bulk_rate(model, designs)
    return {
        "status": solution.status,
        "gap": certificate.gap,
        "wall_s": wall_s,
        "first_s": certificate.first_design_s,
        "memory_bytes": peak_bytes,
        "proven_by": certificate.proven_by,
        "designs": designs,
        "exhaustive_s": designs / rate,
        "whole": whole,
    }


def bulk_rate(model: CostModel, designs: int) -> tuple[float, bool]:
    """Designs a second of exhaustive search, and whether all of them were searched."""
    searched = 0
    started = time.perf_counter()
    for relation in designs_of(model):
        evaluate(model.objective, relation.columns)
        for term in (*(limit.term for limit in model.limits), *model.memory):
            evaluate(term, relation.columns)
        searched += len(relation)
        if searched >= MEASURED_DESIGNS:
            break
    return searched / (time.perf_counter() - started), searched == designs


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(measure(Path(sys.argv[1]))))
        return 0
    head = ("instance", "gap", "time", "first", "memory", "designs", "exhaustive", "ratio")
    print("{:32s} {:>9s} {:>7s} {:>7s} {:>8s} {:>9s} {:>11s} {:>9s}".format(*head))
    failed = 0
    for file in sorted(INSTANCES.glob("*.yaml")):
        run = subprocess.run([sys.executable, __file__, str(file)], capture_output=True, text=True, check=True)
        found = json.loads(run.stdout)
        kept = (
            found["gap"] <= GAP
            and found["wall_s"] <= TIME_S
            and found["first_s"] <= FIRST_S
            and found["memory_bytes"] <= MEMORY_BYTES
            and len(found["proven_by"]) == 2
        )
        failed += not kept
        about = "" if found["whole"] else "~"
        print(
            f"{file.stem:32s} {found['gap']:9.1e} {found['wall_s']:5.1f} s {found['first_s']:5.2f} s "
            f"{found['memory_bytes'] / 1e9:5.2f} GB {found['designs']:9.2e} "
            f"{about + format(found['exhaustive_s'], '.3g') + ' s':>11s} "
            f"{found['exhaustive_s'] / found['wall_s']:9.3g}" + ("" if kept else "   MISSED")
        )
    print(f"asked: gap {GAP:.1e}, {TIME_S:.0f} s, first design {FIRST_S:.0f} s, {MEMORY_BYTES / 1e9} GB, two proofs")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
