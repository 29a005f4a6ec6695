"""Small instances, recorded and random: does the solver return the exhaustive optimum, to the last digit?

Exhaustive search judges every design of the space by the exact model (`codesign.solve.exhaustive`); it shares no bound
with the solver. `--record` writes the optima of the small instances beside them; without it they are compared as well.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from codesign import Instance, Limits, SpecError, read, solve
from codesign.catalogue import load
from codesign.cost.assemble import CostModel
from codesign.solve.exhaustive import Enumeration, enumerate_all, number_of_designs

SMALL = Path(__file__).parents[1] / "instances" / "small"
OPTIMA = SMALL / "optima.yaml"
MOST_DESIGNS = 2500


def random_document(generator: np.random.Generator) -> dict[str, Any]:
    """A small instance: every kind of objective, limit, fabric, framework, and what is owned or bought."""

    def pick(*values: Any) -> Any:
        return values[int(generator.integers(len(values)))]

    def some(*values: Any) -> list[Any]:
        count = int(generator.integers(1, min(len(values), 3) + 1))
        return [values[i] for i in sorted(generator.permutation(len(values))[:count])]

    heads = pick(8, 12, 16, 32)
    head_size = pick(64, 128)
    gated = bool(pick(True, False))
    layers = int(pick(4, 6, 8, 12, 16, 22, 24, 30))
    framework = pick("megatron", "megatron", "torchtitan", "deepspeed")
    pp = [p for p in (1, 2, 3, 4, 6, 8) if layers % p == 0 or (layers + 2) % p == 0]
    batch = int(pick(8, 12, 16, 24, 32, 48, 64))
    plan: dict[str, Any] = {
        "tp": some(1, 2, 4, 8),
        "cp": [1] if framework == "deepspeed" else some(1, 2),
        "pp": some(*pp),
        "dp": some(*[d for d in range(1, 17) if batch % d == 0]),
        "micro_batch": some(*[b for b in (1, 2, 4) if batch % b == 0]),
        "virtual_stages": [1] if framework == "deepspeed" else some(1, 1, 2, 3),
        "recompute": some("none", "selective", "mlp", "full", f"full:{int(pick(1, 2, 3))}"),
        "zero": some(0, 1, 2, 3),
    }
    experts: dict[str, Any] = {}
    if framework != "deepspeed" and pick(True, False, False):
        experts = {
            "experts": int(pick(4, 8, 16)),
            "top_k": int(pick(1, 2, 4)),
            "expert_ffn_hidden": int(pick(1, 2)) * 256,
            "shared_experts": int(pick(0, 1)),
            "dense_layers": int(pick(0, 1, 2)),
        }
        plan["ep"] = some(1, 2, 4)
        plan["expert_tp"] = some(1, 2)
    elif framework == "megatron":
        plan["shard_within"] = some("group", "domain")
    if framework == "megatron" or not experts:
        plan["context_exchange"] = some("ring", "all-gather")
    older = bool(pick(True, False, False))
    owned = pick(True, False)
    objective = pick("step_time", "time_to_train", "tokens_per_s", "total_cost", "tokens_per_usd")
    # Storage so slow that reading and saving matter now and then.
    product = {
        "preset": pick("weka-pod8", "lustre-nvme"),
        "read": pick("40GB/s", "20MB/s"),
        "write": pick("20GB/s", "2GB/s"),
    }
    storage = [{"product": product, "units": some(1, 2, 4)}]
    document: dict[str, Any] = {
        "schema": 1,
        "name": "random",
        "workloads": [
            {
                "model": {
                    "name": "random",
                    "layers": layers,
                    "hidden": heads * head_size,
                    "heads": heads,
                    "kv_heads": pick(heads, heads // 4 if heads >= 32 else heads, 8 if heads % 8 == 0 else heads),
                    "ffn_hidden": int(pick(3, 4)) * heads * head_size,
                    "gated": gated,
                    "vocabulary": int(pick(8192, 32000, 128256)),
                    "tied_embeddings": bool(pick(True, False)),
                    **experts,
                },
                "sequence_length": int(pick(2048, 4096, 16384)),
                "global_batch": batch,
                "tokens": pick("1B", "50B"),
                "precision": pick("bf16", "bf16", "fp8"),
                "framework": framework,
                "attention": "unfused" if older else "flash",
                "sequence_parallel": not older,
                "tuning": pick("full", "full", "full", "lora"),
                "plan": plan,
            }
        ],
        "objective": objective,
        "assumptions": {
            "failure_gpu_hours": pick(50677.0, 500.0),
            "overlap_data_parallel": pick(0.0, 0.5, 0.8, 1.0),
            "overlap_tensor_parallel": pick(0.0, 0.5),
            "overlap_expert_parallel": pick(0.0, 0.4, 0.9),
            "sharding_efficiency": pick(1.0, 0.3),
            "host_layer_s": pick(0.0, 0.0, 1e-3),
            "expert_imbalance": pick(1.0, 1.5),
            "nvls": bool(pick(True, False)),
            "sharp": bool(pick(True, False)),
        },
    }
    servers = some("hgx-h100", "hgx-h200", "dgx-b200", "hgx-mi300x", "hgx-h20")
    fabrics = {
        "kinds": some("rail-optimized", "fat-tree", "rail-only"),
        "oversubscription": some(1, 2, 4),
        # A switch of few ports makes small clusters need several leaves.
        "switches": [{"preset": "quantum2-qm9700", "ports": {"400Gb/s": pick(4, 8, 64), "200Gb/s": pick(8, 128)}}],
    }
    limits: dict[str, Any] = {"gpus": int(pick(16, 32, 64))}
    if objective == "total_cost" or pick(True, False, False):
        limits["deadline"] = pick("1d", "10d", "100d")
    if pick(True, False):
        limits["capex"] = pick("$900k", "$1.5M", "$3M")
    if pick(True, False, False):
        limits["power"] = pick("20kW", "45kW")
    if owned:
        document["offers"] = {"servers": [], "storage": storage if pick(True, False) else [], "fabrics": fabrics}
        count = int(pick(1, 2, 3, 4))
        item: dict[str, Any] = {"server": servers[0], "count": count}
        if pick(True, False):
            item |= {
                "fabric": pick("fat-tree", "rail-optimized"),
                "switch": {"preset": "quantum2-qm9700", "ports": {"400Gb/s": pick(4, 64)}},
            }
        document["inventory"] = [item]
    else:
        document["offers"] = {
            "servers": servers,
            "fabrics": fabrics,
            "storage": storage if pick(True, True, False) else [],
        }
    document["limits"] = limits
    return document


def compared(instance: Instance) -> tuple[Enumeration, str, float, float]:
    """Exhaustive optimum, what is wrong with the solver's answer (empty if nothing), and both times."""
    started = time.perf_counter()
    solution = solve(instance, Limits(gap=0.0, time_s=120.0))
    solve_s = time.perf_counter() - started
    started = time.perf_counter()
    truth = enumerate_all(instance, most=100_000)
    exhaustive_s = time.perf_counter() - started
    wrong = ""
    if truth.evaluation is None:
        if solution.status != "infeasible":
            wrong = f"nothing is feasible, but the status is {solution.status}"
    elif solution.evaluation is None or solution.certificate is None:
        wrong = f"there is a design, but the status is {solution.status}"
    elif solution.evaluation.minimised != truth.evaluation.minimised:
        wrong = f"found {solution.evaluation.minimised!r}, exhaustive {truth.evaluation.minimised!r}"
    elif solution.status != "optimal" or len(solution.certificate.proven_by) != 2:
        wrong = f"status {solution.status}, proven by {solution.certificate.proven_by}"
    return truth, wrong, solve_s, exhaustive_s


def small(record: bool) -> int:
    """The small instances; number of failures."""
    known = {} if record or not OPTIMA.exists() else yaml.safe_load(OPTIMA.read_text(encoding="utf-8"))
    failed, written = 0, {}
    print(f"{'instance':28s} {'designs':>8s} {'feasible':>8s} {'optimum':>22s} {'solve':>8s} {'exhaustive':>10s}")
    for file in sorted(each for each in SMALL.glob("*.yaml") if each != OPTIMA):
        truth, wrong, solve_s, exhaustive_s = compared(read(file))
        assert truth.evaluation is not None
        value = truth.evaluation.objective
        if not record and abs(known[file.stem]["optimum"] / value - 1.0) > 1e-12:
            wrong = wrong or f"recorded {known[file.stem]['optimum']!r}"
        written[file.stem] = {"optimum": value, "designs": truth.designs, "feasible": truth.feasible}
        failed += bool(wrong)
        print(
            f"{file.stem:28s} {truth.designs:8d} {truth.feasible:8d} {value:22.15g} "
            f"{solve_s:6.2f} s {exhaustive_s:8.2f} s {wrong}",
            flush=True,
        )
    if record:
        head = (
            "# Objective of the best design of each instance, by exhaustive search: benchmarks/optimality.py --record\n"
        )
        OPTIMA.write_text(head + yaml.safe_dump(written), encoding="utf-8")
    return failed


def random(count: int, seed: int) -> int:
    """Random instances; number of failures."""
    generator = np.random.default_rng(seed)
    done = failed = infeasible = 0
    total_designs = total_solve_s = total_exhaustive_s = 0.0
    while done < count:
        document = random_document(generator)
        try:
            instance = Instance.from_document(document)
            designs = number_of_designs(CostModel(instance))
        except SpecError:
            continue
        if not 20 <= designs <= MOST_DESIGNS:
            continue
        done += 1
        try:
            truth, wrong, solve_s, exhaustive_s = compared(instance)
        except Exception as problem:  # noqa: BLE001 - the instance must be told, whatever went wrong with it
            print(f"{done}: {type(problem).__name__}: {problem}\n{yaml.safe_dump(document)}", flush=True)
            failed += 1
            continue
        infeasible += truth.evaluation is None
        total_designs += truth.designs
        total_solve_s += solve_s
        total_exhaustive_s += exhaustive_s
        if wrong:
            failed += 1
            print(f"{done}: {wrong}\n{yaml.safe_dump(document)}", flush=True)
    print(
        f"{count} random instances, seed {seed}: {total_designs:.0f} designs, {infeasible} infeasible, {failed} wrong; "
        f"solver {total_solve_s:.0f} s, exhaustive {total_exhaustive_s:.0f} s"
    )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the optima of the small instances")
    parser.add_argument("--random", type=int, default=200, help="number of random instances")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    load()
    return int(small(arguments.record) + random(arguments.random, arguments.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
