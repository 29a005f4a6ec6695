"""What the exact model says of a setting, in the unit of a measurement. Floor 5. In: a `Setting`. Out: numbers.

The step is played by `codesign.exact.step`, memory by `codesign.cost.memory`, exactly as `evaluate` does for a design.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from codesign.calibrate.architectures import Unpredictable
from codesign.calibrate.recipes import Setting, assumptions, memory_model, placement
from codesign.calibrate.runs import Run
from codesign.cost import architecture
from codesign.cost.collectives import TierRates
from codesign.design import Plan
from codesign.design.placement import rank_map
from codesign.exact.step import Spans, spans, step
from codesign.spec.hardware import Gpu
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Workload

LEAF_SERVERS = 32
"""Servers of a leaf group of a rail-optimised fabric of 64-port switches."""

NEARLY = 0.25

SWITCH_LATENCY_S = 3e-7


@dataclass(frozen=True)
class Prediction:
    """Of the fastest plan of a setting that fits; `worst_bytes` is the fullest rank's memory."""

    plan: Plan
    seconds: float
    worst_bytes: float
    capacity_bytes: float
    parts_s: Mapping[str, float]


def predict(setting: Setting, gpu: Gpu, constants: Assumptions) -> Prediction:
    """Play the step of a setting on a GPU; of several plans the fastest that fits.

    The run did fit, whatever the model of memory says: plans within `NEARLY` of the smallest count as fitting.
    """
    memory = memory_model(setting.workload, constants)
    rates = tier_rates(setting, gpu, constants)
    found: list[Prediction] = []
    for plan in setting.plans:
        worst = float(memory.worst(_values(plan)))
        groups = _groups(plan, setting.domain)
        seconds = step(setting.workload, plan, groups, gpu, rates, constants, memory)
        found.append(Prediction(plan, seconds.total_s, worst, gpu.memory_bytes, seconds.parts_s))
    least = min(one.worst_bytes for one in found)
    fitting = [one for one in found if one.worst_bytes <= max(gpu.memory_bytes, (1.0 + NEARLY) * least)]
    return min(fitting, key=lambda one: one.seconds)


def seconds(setting: Setting, gpu: Gpu, constants: Assumptions) -> float:
    """Seconds of the step of a setting whose plan is one plan, without its memory."""
    (plan,) = setting.plans
    memory = memory_model(setting.workload, constants)
    rates = tier_rates(setting, gpu, constants)
    return step(setting.workload, plan, _groups(plan, setting.domain), gpu, rates, constants, memory).total_s


def tier_rates(setting: Setting, gpu: Gpu, constants: Assumptions) -> TierRates:
    """What one rank gets at each tier: NVLink, its share of the network, and the same beyond the leaf group."""
    share = setting.nic_share_bytes_per_s * constants.network_efficiency
    near, far = (constants.network_latency_s + hops * SWITCH_LATENCY_S for hops in (1, 3))
    return TierRates(
        (1.0 / gpu.domain_bandwidth_bytes_per_s, 1.0 / share, 1.0 / share),
        (gpu.domain_latency_s, near, far),
        (gpu.in_switch_efficiency * constants.nvls, 0.0, 0.0),
    )


def _values(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in Plan.__dataclass_fields__}


@lru_cache(maxsize=65536)
def _groups_of(tp: int, cp: int, ep: int, pp: int, dp: int, domain: int) -> Spans:
    plan = Plan(tp, cp, ep, pp, dp, 1, 1, "none", 0)
    return spans(plan, rank_map(plan, placement(plan, domain, LEAF_SERVERS)))


def _groups(plan: Plan, domain: int) -> Spans:
    return _groups_of(plan.tp, plan.cp, plan.ep, plan.pp, plan.dp, domain)


# ------------------------------------------------------------------------------------------------- conventions

FULL, CAUSAL, HARDWARE, PARAMETERS = "full", "causal", "hardware", "parameters"

CONVENTIONS: tuple[tuple[str, str], ...] = (
    (r"megatron-bridge", CAUSAL),
    (r"llm-foundry", PARAMETERS),
    (r"torchtitan", PARAMETERS),
)
"""How a source counts the FLOPs of its figures, by pattern of `source`; the full square of attention otherwise."""


def flops_per_step(setting: Setting, plan: Plan, metric: str) -> float:
    """FLOPs of a step as the source of the run counts them.

    `full`: three times the forward, attention over the full square; `causal`: half of it; `parameters`: 6 for each
    parameter and 12 L h s for attention; metrics of hardware FLOPs add what is recomputed (Narayanan et al. 2021,
    eq. 3: a forward of the layers, not of the head). With adapters the gradients of weights are not counted.
    """
    workload = setting.workload
    model, sequence = workload.model, workload.sequence_length
    tokens = workload.global_batch * sequence
    convention = next(
        (each for pattern, each in CONVENTIONS if re.search(pattern, setting.run.text("source"), re.I)), FULL
    )
    half = convention == CAUSAL
    if convention == PARAMETERS:
        attention = 12.0 * model.layers * model.heads * model.head_size * sequence
        each = 6.0 * architecture.total_parameters(model) + attention
        layers = each / 3.0
    else:
        each = float(architecture.model_flops_per_token(model, sequence, causal_half=half))
        layers = each / 3.0 - architecture.head_flops_per_token(model)
    if workload.tuning == "lora":
        each *= 2.0 / 3.0  # frozen weights have no gradients: a forward and the gradients of inputs
    if metric in ("hw_tflops_per_gpu", "hfu", "tflops_per_gpu", "pct_of_peak", "aggregate_pflops"):
        core = float(model.layers * architecture.attention_flops_per_token(model, sequence, causal_half=half))
        again = {"full": layers, "selective": core, "mlp": architecture.feed_forward_flops_per_token(model)}
        each += again.get(plan.recompute, 0.0)
    return each * tokens


def measured_seconds(setting: Setting, plan: Plan, run: Run) -> float:
    """Seconds of a step that a measured value says."""
    return step_seconds(setting, plan, run.metric, run.text("unit"), run.value)


def in_unit_of(setting: Setting, prediction: Prediction, run: Run) -> float:
    """The prediction in the metric and unit of the run."""
    metric, unit = run.metric, run.text("unit")
    if metric in RATES:
        # Rates and times are inverse to each other: what a value of 1 would take, over what the prediction takes.
        return step_seconds(setting, prediction.plan, metric, unit, 1.0) / prediction.seconds
    return prediction.seconds / step_seconds(setting, prediction.plan, metric, unit, 1.0)


TIMES = ("iteration_time", "iteration_time_median", "iteration_time_mean", "iteration_time_p10",
         "iteration_time_block_median", "step_time", "train_days_300B_tokens")  # fmt: skip
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "hfu", "model_tflops_per_gpu", "hw_tflops_per_gpu",
         "tflops_per_gpu", "pct_of_peak", "aggregate_pflops", "tracked_throughput_median", "samples_per_s")  # fmt: skip


def step_seconds(setting: Setting, plan: Plan, metric: str, unit: str, value: float) -> float:
    """Seconds of a step at a value of a metric."""
    workload, gpus = setting.workload, plan.world
    tokens = workload.global_batch * workload.sequence_length
    if metric in TIMES:
        if metric == "train_days_300B_tokens":
            return value * 86400.0 * tokens / 300e9
        return value * {"s": 1.0, "ms": 1e-3, "min": 60.0}[unit.split()[0]]
    if metric == "tokens_per_s":
        return tokens / value
    if metric == "tokens_per_s_per_gpu":
        return tokens / gpus / value
    if metric in ("tracked_throughput_median", "samples_per_s"):
        if "v3.0" in setting.run.text("notes") and "tokens/s for gpt3 v3.0" in unit:
            return tokens / value
        return workload.global_batch / value
    flops = flops_per_step(setting, plan, metric)
    if metric in ("mfu", "hfu", "pct_of_peak"):
        peak = setting.server.gpu.peak(workload.precision) * gpus
        return flops / (peak * value * (0.01 if "%" in unit else 1.0))
    if metric == "aggregate_pflops":
        return flops / (value * 1e15)
    if metric in RATES:
        return flops / gpus / (value * 1e12)
    raise Unpredictable(f"the metric is not predicted ({metric})")


def is_time(metric: str) -> bool:
    """Whether a metric tells how fast a step is."""
    return metric in TIMES or metric in RATES


GIB = float(1 << 30)


def memory_in_unit_of(setting: Setting, prediction: Prediction, run: Run) -> float:
    """A memory metric of a run: a peak, the parts of the formulas of Korthikanti et al. 2022, or whether it fits.

    Raises
    ------
    Unpredictable
        For a metric that is not of memory.
    """
    unit = 1e9 if run.text("unit").startswith("GB") else GIB
    if run.metric == "peak_memory":
        return prediction.worst_bytes / unit
    if run.metric == "fits_in_memory":
        return float(prediction.worst_bytes <= prediction.capacity_bytes)
    plan, workload = prediction.plan, setting.workload
    if run.metric == "activation_memory":
        return _first_stage(workload, plan, "activations") / unit
    if run.metric == "param_opt_memory":
        return _first_stage(workload, plan, "weights", "gradients", "optimizer") / unit
    if run.metric == "activation_memory_relative":
        # Per layer, against tensor parallelism alone: no sequence parallelism, nothing recomputed.
        base = workload.model_copy(update={"sequence_parallel": False})
        whole = _first_stage(base, replace(plan, recompute="none"), "activations")
        return 100.0 * _first_stage(workload, plan, "activations") / whole
    raise Unpredictable(f"the metric is not predicted ({run.metric})")


def _first_stage(workload: Workload, plan: Plan, *parts: str) -> float:
    """Bytes of some parts on the first stage, as formulas count them: nothing for fragmentation."""
    constants = assumptions(memory_fragmentation=0.0)
    found = memory_model(workload, constants).by_part(_values(plan), 0)
    return float(sum(np.asarray(found[name]) for name in parts))
