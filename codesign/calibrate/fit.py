"""Constants of GPUs and software, fitted to measured runs. Floor 5. In: runs. Out: `Fit`: constants, their error.

Half of the configurations of each file, chosen by a hash of what was run and a seed, are for fitting; the others are
never looked at here. What is minimised is the robust sum of squares of log(predicted / measured), each file weighing
the square root of its configurations, so that none drowns the others. No constant belongs to a model or a run: the
parameters are those of `PARAMETERS`, for the GPUs and the generations of software that the runs used.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.calibrate import predict, recipes
from codesign.calibrate.architectures import Unpredictable
from codesign.calibrate.recipes import Setting
from codesign.calibrate.runs import Run
from codesign.cost.legality import USUAL
from codesign.design import Plan
from codesign.spec.hardware import Gpu
from codesign.spec.limits import Assumptions

SEED = "2026"
"""Default seed of the split; a text, hashed with each configuration."""

PRIOR = 0.02
"""Pull towards what is expected of a constant: the log error that a move across its whole range is worth to one run."""

ROBUST = 0.1
"""Log error beyond which a run counts by its size, not its square."""

RANGES: Mapping[str, tuple[float, float, float]] = {
    "matmul_ceiling": (0.2, 0.85, 0.92),
    "matmul_ceiling_fp8": (0.2, 0.75, 0.98),
    "matmul_ceiling_mxfp8": (0.2, 0.70, 0.98),
    "matmul_ceiling_nvfp4": (0.15, 0.60, 0.98),
    "sustained_clock": (0.4, 0.85, 1.0),
    "grouped_ceiling": (0.1, 0.7, 1.0),
    "grouped_ceiling_narrow": (0.1, 0.5, 1.0),
    "attention_ceiling": (0.2, 0.4, 0.8),
    "memory_ceiling": (0.3, 0.7, 1.0),
    "tokens_half": (1.0, 250.0, 4000.0),
    "width_half": (1.0, 80.0, 1000.0),
    "launch_s": (1e-7, 2e-4, 2e-3),
    "overlap_data_parallel": (0.0, 0.8, 1.0),
    "overlap_tensor_parallel": (0.0, 0.2, 0.95),
    "overlap_expert_parallel": (0.0, 0.5, 0.95),
    "sharding_efficiency": (0.02, 0.5, 1.0),
    "kernel_share": (0.3, 0.85, 1.0),
    "attention_share": (0.1, 0.8, 1.0),
    "launch_share": (0.0, 0.5, 1.0),
    "collective_launch_s": (0.0, 2e-5, 1e-3),
    "host_skew": (0.0, 0.1, 2.0),
    "host_mixture_s": (0.0, 1e-3, 2e-2),
    "host_layer_s": (0.0, 5e-4, 5e-3),
    "step_overhead_s": (0.0, 1e-2, 0.5),
}
"""Least and greatest value of each kind of constant that makes sense physically, and between them what is expected:
there a fit starts, and towards it constants are pulled that the runs hardly tell."""


@dataclass(frozen=True)
class Parameter:
    """One constant: a field of a GPU (its efficiency, or its own) or of a generation of software.

    `record` may name several records, with `|` between them, that share the value.
    """

    section: str
    record: str
    field: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.record}.{self.field}"

    @property
    def records(self) -> tuple[str, ...]:
        return tuple(self.record.split("|"))


@dataclass(frozen=True)
class Sample:
    """A configuration with the seconds that were measured of it (the median, where it was measured more than once)."""

    setting: Setting
    measured_s: float
    file: str


@dataclass(frozen=True)
class Fit:
    """Fitted values, and the mean absolute relative error before and after, by file, on the fitting half."""

    values: Mapping[Parameter, float]
    samples: int
    error_before: Mapping[str, float]
    error_after: Mapping[str, float]


def identity(setting: Setting) -> str:
    """What was run, as text: equal for equal workloads, plans, GPUs and software, whatever a source calls them.

    Decisions of `legality.USUAL` are left out where they are as usual: lists of what was fitted outlive new ones.
    """
    workload = setting.workload.model_dump(exclude={"name": True, "model": {"name"}})
    stated = {name: value for name, value in workload["plan"].items() if name not in USUAL or value is not None}
    plans = tuple(_Text(plan) for plan in setting.plans)
    told = (workload | {"plan": stated}, plans, setting.server.gpu.name, setting.run.file)
    return f"{told!r}|{setting.software.name}"


class _Text:
    """A plan as text, without what is as usual."""

    def __init__(self, plan: Plan) -> None:
        self._text = ", ".join(f"{name}={value!r}" for name, value in vars(plan).items() if USUAL.get(name) != value)

    def __repr__(self) -> str:
        return f"Plan({self._text})"


def digest(name: str) -> str:
    """A short hash of an identity, to keep a list of what was fitted."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def chosen_for_fitting(settings: Sequence[Setting], seed: str = SEED) -> frozenset[str]:
    """Identities of half of the configurations, half of each kind: file, software, GPU, format, with experts or not.

    Within a kind they are ordered by a hash of identity and seed; the first half is taken, the smaller one where their
    number is odd.
    """
    kinds: dict[tuple[object, ...], dict[str, bytes]] = {}
    for setting in settings:
        workload = setting.workload
        kind = (
            setting.run.file, setting.software.name, setting.server.gpu.name, workload.precision,
            bool(workload.model.experts),
        )  # fmt: skip
        name = identity(setting)
        digest = hashlib.sha256(f"{seed}|{name.rpartition('|')[0]}".encode()).digest()
        kinds.setdefault(kind, {})[name] = bytes([digest[0] % 2]) + digest
    chosen: list[str] = []
    for names in kinds.values():
        chosen += sorted(names, key=names.__getitem__)[: len(names) // 2]
    return frozenset(chosen)


def settings_of(runs: Sequence[Run]) -> tuple[Setting, ...]:
    """Settings of the runs that tell of a time and can be predicted by one plan."""
    found = []
    for run in runs:
        if predict.is_time(run.metric):
            try:
                setting = recipes.setting(run)
            except Unpredictable:
                continue
            if len(setting.plans) == 1:
                found.append(setting)
    return tuple(found)


def samples(runs: Sequence[Run], keep: Callable[[Setting], bool]) -> tuple[Sample, ...]:
    """The configurations of runs that can be predicted and that `keep` takes, each once.

    Only runs whose plan is one plan: a blank that is filled by search would move while constants are fitted.
    """
    found: dict[str, list[tuple[Setting, float]]] = {}
    for run in runs:
        if not predict.is_time(run.metric):
            continue
        try:
            setting = recipes.setting(run)
            if len(setting.plans) == 1 and keep(setting):
                seconds = predict.measured_seconds(setting, setting.plans[0], run)
                found.setdefault(identity(setting), []).append((setting, seconds))
        except Unpredictable:
            continue
    return tuple(
        Sample(several[0][0], float(np.median([seconds for _, seconds in several])), several[0][0].run.file)
        for several in found.values()
    )


def fit(
    given: Sequence[Sample], parameters: Sequence[Parameter], fixed: Mapping[Parameter, float] | None = None
) -> Fit:
    """Fit some constants to samples; `fixed` are taken as given, all others as in the catalogue. Needs scipy."""
    fixed = fixed or {}
    from scipy.optimize import least_squares

    count = Counter(sample.file for sample in given)
    weight = np.array([count[sample.file] ** -0.25 for sample in given])
    low, start, high = (np.array([RANGES[p.field][column] for p in parameters]) for column in range(3))
    base = _base()
    scaled = (start - low) / (high - low)

    def residuals(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        values = {**fixed, **dict(zip(parameters, (low + x * (high - low)).tolist(), strict=True))}
        errors = weight * np.array([_log_error(sample, values, base) for sample in given])
        return np.concatenate([errors, PRIOR * (x - scaled)])

    found = least_squares(
        residuals, scaled, bounds=(0.0, 1.0), loss="soft_l1", f_scale=ROBUST * float(np.median(weight)),
        diff_step=np.full(len(parameters), 1e-3), xtol=1e-4, ftol=1e-5, max_nfev=40,
    )  # fmt: skip
    values = dict(zip(parameters, (low + found.x * (high - low)).tolist(), strict=True))
    return Fit(values, len(given), _errors(given, fixed, base), _errors(given, {**fixed, **values}, base))


def _base() -> Assumptions:
    return recipes.assumptions()


def _seconds(sample: Sample, values: Mapping[Parameter, float], base: Assumptions) -> float:
    setting = sample.setting
    gpu, software = setting.server.gpu, setting.software
    own: dict[str, float] = {}
    inner: dict[str, float] = {}
    soft = software.assumptions()
    for p, value in values.items():
        if p.section == "gpus" and gpu.name in p.records:
            (own if p.field in Gpu.model_fields else inner)[p.field] = value
        elif p.section == "software" and software.name in p.records:
            soft[p.field] = value
    gpu = gpu.model_copy(update=own | {"efficiency": gpu.efficiency.model_copy(update=inner)})
    return predict.seconds(setting, gpu, base.model_copy(update=soft))


def _log_error(sample: Sample, values: Mapping[Parameter, float], base: Assumptions) -> float:
    return float(np.log(_seconds(sample, values, base) / sample.measured_s))


def _errors(given: Sequence[Sample], values: Mapping[Parameter, float], base: Assumptions) -> dict[str, float]:
    by_file: dict[str, list[float]] = {}
    for sample in given:
        by_file.setdefault(sample.file, []).append(abs(_seconds(sample, values, base) / sample.measured_s - 1.0))
    return {file: float(np.mean(errors)) for file, errors in by_file.items()}
