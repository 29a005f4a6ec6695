"""What is fitted to what, in which order. Floor 5. In: runs. Out: fitted constants with their errors.

Stages follow one another: each takes the constants of those before it as they are, so that a constant is told by the
runs that show it best (rates of matrices by dense models, of grouped ones by mixtures), and no stage has more than a
handful of free constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codesign.calibrate.fit import SEED, Fit, Parameter, Sample, chosen_for_fitting, fit, identity, samples, settings_of
from codesign.calibrate.recipes import Setting
from codesign.calibrate.runs import Run

AMPERE = "a100-sxm-80|a100-sxm-40"
HOPPER = "h100-sxm-80|h200-sxm-141|h800-sxm-80"
BLACKWELL = "gb200-186|gb300-288|b200-hgx-180|b300-hgx-288"

CORE = "megatron-core|mlperf|megatron-bridge|megatron-bridge-2025"
"""Generations on Megatron-Core, which overlap alike."""

SHAPE = ("tokens_half", "width_half", "launch_s")


@dataclass(frozen=True)
class Stage:
    """One fit: which samples it takes, and which constants it sets."""

    name: str
    software: tuple[str, ...]
    gpus: str
    mixtures: bool | None
    """Only mixtures of experts, only dense models, or both."""
    parameters: tuple[Parameter, ...]

    def takes(self, setting: Setting) -> bool:
        return (
            setting.software.name in self.software
            and setting.server.gpu.name in self.gpus.split("|")
            and self.mixtures in (None, bool(setting.workload.model.experts))
        )


def _gpu(record: str, *names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter("gpus", record, name) for name in names)


def _software(record: str, *names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter("software", record, name) for name in names)


STAGES: tuple[Stage, ...] = (
    Stage(
        "A100, dense, unfused attention",
        ("megatron-2021", "megatron-deepspeed", "deepspeed-zero3", "bigscience", "bigscience-bf16"),
        AMPERE,
        False,
        (
            *_gpu(AMPERE, "matmul_ceiling", "memory_ceiling", *SHAPE),
            *_software("megatron-deepspeed", "host_layer_s", "host_skew", "step_overhead_s"),
            *_software("deepspeed-zero3", "sharding_efficiency"),
            *_software("bigscience|bigscience-bf16", "kernel_share"),
        ),
    ),
    Stage(
        "A100, fully sharded",
        ("fsdp-ampere",),
        AMPERE,
        False,
        (
            *_gpu(AMPERE, "attention_ceiling"),
            *_software("fsdp-ampere", "kernel_share", "sharding_efficiency", "host_layer_s", "step_overhead_s"),
        ),
    ),
    Stage(
        "H100, dense",
        tuple(CORE.split("|")),
        HOPPER,
        False,
        (
            *_gpu(HOPPER, "matmul_ceiling", "matmul_ceiling_fp8", "attention_ceiling", "memory_ceiling", *SHAPE),
            *_software(CORE, "overlap_tensor_parallel", "overlap_data_parallel", "collective_launch_s"),
            *_software("mlperf", "launch_share"),
        ),
    ),
    Stage(
        "H100, fully sharded",
        ("fsdp-hopper",),
        HOPPER,
        False,
        _software(
            "fsdp-hopper", "kernel_share", "attention_share", "sharding_efficiency", "host_layer_s", "step_overhead_s"
        ),
    ),
    Stage(
        "H100, MaxText",
        ("maxtext",),
        HOPPER,
        False,
        _software("maxtext", "kernel_share", "sharding_efficiency", "step_overhead_s"),
    ),
    Stage(
        "H100, mixtures",
        tuple(CORE.split("|")),
        HOPPER,
        True,
        (
            *_gpu(HOPPER, "grouped_ceiling", "grouped_ceiling_narrow"),
            *_software("megatron-core|megatron-bridge-2025", "overlap_expert_parallel"),
        ),
    ),
    Stage(
        "Blackwell, dense and mixtures",
        ("megatron-bridge", "megatron-bridge-2025"),
        BLACKWELL,
        None,
        (
            *_gpu(BLACKWELL, "memory_ceiling", "attention_ceiling", "launch_s"),
            *_gpu(BLACKWELL, "grouped_ceiling", "grouped_ceiling_narrow"),
            *_software("megatron-bridge", "overlap_expert_parallel"),
            *_software("megatron-bridge-2025", "kernel_share", "host_mixture_s"),
            *_gpu(BLACKWELL, "matmul_ceiling_fp8", "matmul_ceiling_mxfp8", "matmul_ceiling_nvfp4"),
            *_gpu("gb200-186", "sustained_clock"),
            *_gpu("b200-hgx-180|b300-hgx-288", "sustained_clock"),
        ),
    ),
)


@dataclass(frozen=True)
class Fitted:
    """A stage with what it found."""

    stage: Stage
    fit: Fit


def fit_all(
    runs: Sequence[Run],
    seed: str = SEED,
    stages: Sequence[Stage] = STAGES,
    tell: Callable[[str], None] | None = None,
) -> tuple[Fitted, ...]:
    """Fit every stage that has at least as many samples as constants, on the fitting half."""
    chosen = chosen_for_fitting(settings_of(runs), seed)
    everything = samples(runs, lambda setting: identity(setting) in chosen)
    values: dict[Parameter, float] = {}
    found = []
    for stage in stages:
        given = [sample for sample in everything if stage.takes(sample.setting)]
        free = [parameter for parameter in stage.parameters if _shown(parameter, given)]
        if len(given) < len(free) or not free:
            continue
        result = fit(given, free, values)
        values |= result.values
        found.append(Fitted(stage, result))
        if tell is not None:
            tell(f"{stage.name}: {len(given)} configurations, {len(free)} constants")
    return tuple(found)


def _shown(parameter: Parameter, given: Sequence[Sample]) -> bool:
    """Whether some sample depends on a constant: its GPU or software, and for a ceiling its format."""
    for sample in given:
        setting = sample.setting
        name = setting.server.gpu.name if parameter.section == "gpus" else setting.software.name
        if name not in parameter.records:
            continue
        if parameter.field.startswith("matmul_ceiling"):
            suffix = parameter.field.removeprefix("matmul_ceiling").lstrip("_") or "bf16"
            if setting.workload.precision != suffix:
                continue
        if parameter.field.startswith("grouped_ceiling"):
            narrow = parameter.field.endswith("narrow")
            if (setting.workload.precision != "bf16") != narrow:
                continue
        return True
    return False
