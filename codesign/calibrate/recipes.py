"""From a measured run to something that can be predicted: what is blank is filled by rule. Floor 5.

In: a `Run`. Out: a `Setting`, or `Unpredictable` with the reason. Each rule that was used on a run is named in
`Setting.filled`. The rules read what the run's columns say, and nothing of what was measured:

- *Architecture*: the stated sizes; else the catalogue's model of that family (`architectures`).
- *GPU and network*: the server of the catalogue with that GPU, on its standard network without oversubscription; where
  the publisher's cluster is known to differ (`CLUSTERS`), that cluster.
- *Degrees*: the data-parallel degree is what the GPUs leave. What else is blank is taken as tuned, as published runs
  are: the fastest of the usual values that fit, as the model judges them (`choices`).
- *Software*: the generation that the GPU and the kind of sharding imply (`software_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import gcd, prod
from typing import Any

from codesign import catalogue
from codesign.calibrate.architectures import Unpredictable, architecture_of
from codesign.calibrate.runs import Run
from codesign.cost import legality, stages
from codesign.cost.memory import TrainingMemory, training_memory
from codesign.design import Layout, Placement, Plan
from codesign.spec.hardware import Precision, Server
from codesign.spec.limits import Assumptions, Software
from codesign.spec.stated import record
from codesign.spec.workload import Model, Workload

MOST_CHOICES = 400
"""Combinations of blank decisions that are tried at most; a run that leaves more open has no plan to predict."""


@dataclass(frozen=True)
class Setting:
    """A run, ready to be predicted: one workload and GPU, and one plan or several of which the fastest counts."""

    run: Run
    workload: Workload
    server: Server
    software: Software
    plans: tuple[Plan, ...]
    domain: int
    nic_share_bytes_per_s: float
    filled: tuple[str, ...] = field(default=())

    @property
    def gpus(self) -> int:
        return self.plans[0].world


# --------------------------------------------------------------------------------------------- GPU and network

GPUS: tuple[tuple[str, str, str], ...] = (
    (r"gb300", "gb300-288", "gb300-nvl72"),
    (r"gb200", "gb200-186", "gb200-nvl72"),
    (r"b300", "b300-hgx-288", "dgx-b300"),
    (r"b200", "b200-hgx-180", "dgx-b200"),
    (r"h200", "h200-sxm-141", "hgx-h200"),
    (r"h800", "h800-sxm-80", "hgx-h100"),
    (r"h100", "h100-sxm-80", "hgx-h100"),
    (r"a100.*40", "a100-sxm-40", "dgx-a100"),
    (r"a100|ampere", "a100-sxm-80", "dgx-a100"),
    (r"v100", "v100-sxm-32", "dgx-a100"),
)
"""Pattern of the GPU's name, its record, and the server whose network it is taken to stand on."""

CLUSTERS: tuple[tuple[str, int, float], ...] = (
    # VIA-Research/vTrain, config/validation: 800 Gb/s between nodes
    (r"vtrain", 4, 25e9),
    # bigscience, Jean Zay: 140 Gb/s a node measured (deepspeedai/DeepSpeed#2928), of 4 adapters of 100 Gb/s
    (r"bigscience", 4, 4.375e9),
)
"""Pattern of `source`, network adapters a node, bytes a second of each."""

SEGMENT_OF_RACK = 72


def server_of(run: Run) -> Server:
    """The server of a run; its GPU may differ from the catalogue's."""
    for pattern, gpu, server in GPUS:
        if re.search(pattern, run.text("gpu"), re.I):
            if gpu not in catalogue.load().names("gpus"):
                raise Unpredictable(f"the GPU is not in the catalogue ({run.text('gpu')})")
            return _server(server, gpu)
    raise Unpredictable(f"the GPU is not in the catalogue ({run.text('gpu')})")


@cache
def _server(server: str, gpu: str) -> Server:
    values: dict[str, Any] = record("servers", server) | {"gpu": record("gpus", gpu)}
    return Server.model_validate(values)


def nic_share_bytes_per_s(run: Run, server: Server) -> float:
    """Line rate of the network for one GPU."""
    for pattern, nics, each in CLUSTERS:
        if re.search(pattern, run.text("source"), re.I):
            return nics * each / (run.count("gpus_per_node") or server.gpus)
    return server.nics * server.nic_bandwidth_bytes_per_s / server.gpus


def domain_of(server: Server, gpus: int) -> int:
    """GPUs of a run that share an NVLink domain: the largest part of a domain that divides them."""
    if gpus <= server.gpus:
        return gpus
    return next(size for size in range(server.gpus, 0, -1) if gpus % size == 0)


# -------------------------------------------------------------------------------------- precision and software


def precision_of(run: Run, server: Server) -> Precision:
    """Format of the matrices."""
    text = run.text("precision").lower()
    found: Precision = "bf16"
    if "nvfp4" in text or "fp4" in text:
        found = "nvfp4"
    elif "mx" in text or "alternate" in text:
        found = "mxfp8"
    elif "fp8" in text or (not text and "mlperf" in run.text("source").lower() + run.text("model").lower()):
        found = "fp8"
    if not server.gpu.computes(found):
        raise Unpredictable(f"the catalogue has no {found} peak of the GPU")
    return found


@cache
def software(name: str) -> Software:
    """A record of the catalogue."""
    return Software.model_validate(record("software", name))


def software_of(run: Run) -> Software:
    """The generation of software: by sharding, publisher and GPU."""
    where = f"{run.text('source')} {run.text('model')}".lower()
    blackwell = re.search(r"b200|b300", run.text("gpu"), re.I) is not None
    if "maxtext" in where or "paxml" in where:
        return software("maxtext")
    if "deepseek" in run.text("source").lower():
        return software("deepseek")
    if "mlperf" in where or "mlcommons" in where:
        return software("mlperf")
    if "bigscience" in where or "bloom" in where:
        return software("bigscience-bf16" if run.text("zero").lower().startswith("bf16optimizer") else "bigscience")
    if "vtrain" in where or "megatron-deepspeed" in where:
        return software("megatron-deepspeed")
    if "fsdp" in run.text("zero").lower() or "torchtitan" in where:
        if "megatron-bridge" in where:
            return _bridge(where)
        return software("fsdp-ampere" if re.search(r"a100|v100", run.text("gpu"), re.I) else "fsdp-hopper")
    if re.search(r"a100|v100", run.text("gpu"), re.I):
        if run.text("zero") == "3":
            return software("deepspeed-zero3")
        return software("megatron-2021")
    if "megatron-bridge" in where:
        return _bridge(where)
    return software("megatron-bridge" if blackwell else "megatron-core")


def _bridge(where: str) -> Software:
    """By the release that the source states; an early one was slower, on mixtures above all."""
    release = re.search(r"\((\d\d\.\d\d)[\d.]* nemo", where)
    early = release is not None and release.group(1) < "26.04"
    return software("megatron-bridge-2025" if early else "megatron-bridge")


DISTRIBUTED_OPTIMIZER = frozenset({"megatron-core", "megatron-bridge", "megatron-bridge-2025", "mlperf", "deepseek"})
"""Software that shards its optimizer states unless told otherwise."""


def zero_of(run: Run, generation: Software, pp: int) -> int:
    """Stage of sharding; a pipeline keeps whole gradients, so that 2 and 3 shard as 1 with one."""
    text = run.text("zero").lower()
    stated = re.match(r"\d", text)
    if stated:
        stage = int(stated.group())
    elif "fsdp" in text:
        stage = 2
    elif "bf16optimizer" in text:
        stage = 1
    elif generation.name == "maxtext":
        stage = 3
    else:
        stage = 1 if generation.name in DISTRIBUTED_OPTIMIZER else 0
    return min(stage, 1) if pp > 1 else stage


# ---------------------------------------------------------------------------------------------------- the plan

SEQUENCES: tuple[tuple[str, int], ...] = (
    (r"llama-2-70b lora \(mlperf\)", 8192),  # rules of MLPerf Training, llama2_70b_lora
    (r"torchtitan", 8192),  # its configurations of Llama 3
)
"""Sequence lengths of benchmarks and of the configurations of a framework, where a row does not state one."""

# A micro-batch that is not stated is one sequence in tables of today, whose sequences are long.
TENSOR, MICRO_BATCH = (1, 2, 4, 8), (1, 2, 4, 8, 16)
MOST_STAGES = 64


def setting(run: Run) -> Setting:
    """What is to be predicted for a run; of equal rows, the setting of the first.

    Raises
    ------
    Unpredictable
        With the reason.
    """
    key = (run.configuration, run.text("source"), run.text("notes"))
    if key not in _KNOWN:
        try:
            _KNOWN[key] = _setting(run)
        except Unpredictable as reason:
            _KNOWN[key] = reason
    found = _KNOWN[key]
    if isinstance(found, Unpredictable):
        raise found
    return found


_KNOWN: dict[object, Setting | Unpredictable] = {}


def _setting(run: Run) -> Setting:
    filled: list[str] = []
    text = f"{run.text('source')} {run.text('model')} {run.text('notes')}".lower()
    if "SUSPECT" in run.text("notes") or "INCONSISTENT" in run.text("notes"):
        raise Unpredictable("the source's own figures contradict each other")
    model = architecture_of(run, filled)
    server = server_of(run)
    generation = software_of(run)
    precision = precision_of(run, server)
    sequence, batch, gpus = run.count("seq"), run.count("gbs"), run.count("gpus")
    if sequence is None:
        sequence = next((each for pattern, each in SEQUENCES if re.search(pattern, text)), None)
        filled.append("sequence length of the benchmark")
    if sequence is None:
        raise Unpredictable("the sequence length is not stated")
    if gpus is None:
        raise Unpredictable("the number of GPUs is not stated")
    if batch is None:
        batch = _batch(run, gpus)
        filled.append("global batch, from micro-batch and data parallelism")
    lora = "lora" in text
    sp = run.text("sp").lower()
    workload = Workload(
        name="run",
        model=model,
        sequence_length=sequence,
        global_batch=batch,
        precision=precision,
        framework=generation.framework,
        attention=generation.attention,
        sequence_parallel=sp == "yes" if sp in ("yes", "no") else generation.sequence_parallel,
        tuning="lora" if lora else "full",
    )
    plans = tuple(_plans(run, workload, generation, gpus, server.gpu.memory_bytes, filled))
    if not plans:
        raise Unpredictable("no plan with the stated degrees fits the GPUs, the layers and the batch")
    if len(plans) > MOST_CHOICES:
        raise Unpredictable("too little of the plan is stated")
    return Setting(
        run=run,
        workload=workload,
        server=server,
        software=generation,
        plans=plans,
        domain=domain_of(server, gpus),
        nic_share_bytes_per_s=nic_share_bytes_per_s(run, server),
        filled=tuple(filled),
    )


def _batch(run: Run, gpus: int) -> int:
    micro_batch, dp = run.count("mbs"), run.count("dp")
    others = [run.count(column) for column in ("tp", "pp", "cp")]
    if dp is None and all(others):
        dp = gpus // prod(each or 1 for each in others)
    if micro_batch is None or dp is None:
        raise Unpredictable("the global batch is not stated")
    return micro_batch * dp


def _plans(
    run: Run, workload: Workload, generation: Software, gpus: int, capacity_bytes: float, filled: list[str]
) -> Iterator[Plan]:
    model = workload.model
    stated = [_stated(run, column) for column in ("tp", "pp", "cp", "dp")]
    if all(stated) and not model.experts and gpus != prod(each[0] for each in stated):
        raise Unpredictable("the stated degrees do not make up the number of GPUs")
    blank = [c for c in ("tp", "pp", "vp", "cp", "mbs", "recompute") if not run.text(c)]
    tensors = _stated(run, "tp") or TENSOR
    depths = tuple(p for p in range(1, MOST_STAGES + 1) if gpus % p == 0)
    pipelines = _stated(run, "pp") or depths
    contexts = _stated(run, "cp") or (1,)
    if gpus % (tensors[0] * pipelines[0] * contexts[0]) and pipelines[0] > model.layers:
        pipelines = depths
        blank.append("pp")  # more stages than layers: a misprint
    experts = (_stated(run, "ep") or (1,)) if model.experts else (1,)
    modern = workload.attention == "flash" and generation.framework == "megatron"
    micro_batches = _stated(run, "mbs") or ((1,) if modern else MICRO_BATCH)
    if "torchtitan" in run.text("source").lower() and pipelines[0] > 1:
        micro_batches = (1,)  # what it calls a batch is cut into micro-batches of one sequence
    chunks = _stated(run, "vp")
    recompute = _recompute(run, workload)
    if blank:
        filled.append(f"tuned where blank: {', '.join(blank)}")
    told = re.search(r"model-parallel size (\d+)", run.text("notes"))
    for tp, pp, cp, ep, micro_batch in product(tensors, pipelines, contexts, experts, micro_batches):
        if gpus % (tp * pp * cp) or model.heads % tp or not stages.model_splits(model, pp):
            continue
        if told is not None and tp * pp != int(told.group(1)):
            continue
        dp = gpus // (tp * pp * cp)
        samples = dp * micro_batch
        if workload.global_batch < samples or (model.experts and (tp * cp * dp) % ep):
            continue
        m = workload.global_batch // samples
        for v in _chunks(chunks, model, pp, m, generation):
            zero = zero_of(run, generation, pp)
            kinds = [Plan(tp, cp, ep, pp, dp, v, micro_batch, each, zero) for each in recompute]
            yield next((plan for plan in kinds if _fits(plan, workload, capacity_bytes)), kinds[-1])


def _fits(plan: Plan, workload: Workload, capacity_bytes: float) -> bool:
    """Whether a plan fits by the model of memory, its error taken in favour of the plan: it did run."""
    constants = assumptions()
    values = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    worst = float(memory_model(workload, constants).worst(values))
    return worst * (1.0 - constants.memory_band) <= capacity_bytes


def _stated(run: Run, column: str) -> tuple[int, ...]:
    value = run.count(column)
    return () if value is None else (value,)


def _chunks(stated: tuple[int, ...], model: Model, pp: int, m: int, generation: Software) -> list[int]:
    """Virtual stages: the stated number where it can be laid out, else every legal one."""
    if pp == 1 or not generation.interleaves:
        return [1]
    legal = [
        v for v in range(1, model.layers // pp + 2) if stages.model_splits(model, pp, v) and (v == 1 or m % pp == 0)
    ]
    if stated:
        return [v for v in legal if v in stated]
    return legal


def _recompute(run: Run, workload: Workload) -> tuple[str, ...]:
    text = run.text("recompute").lower()
    for kind in ("full", "selective", "none"):
        if text.startswith(kind):
            return (kind,)
    if workload.attention == "unfused":
        return ("full",)  # the rule of that generation: whole layers, or nothing
    return ("none",)  # fused attention needs none; tables of tuned runs recompute parts of layers at most


def assumptions(**changed: object) -> Assumptions:
    """The catalogue's assumptions, some of them replaced."""
    if not changed:
        return _plain_assumptions()
    return Assumptions.model_validate(record("assumptions", "default") | changed)


def memory_model(workload: Workload, constants: Assumptions) -> TrainingMemory:
    """Memory of a workload."""
    return training_memory(workload, constants, legality.PROFILES[workload.framework].vocabulary_multiple or 1)


@cache
def _plain_assumptions() -> Assumptions:
    return Assumptions.model_validate(record("assumptions", "default"))


def placement(plan: Plan, domain: int, leaf: int) -> Placement:
    """Megatron-LM's order: the domain is filled by tp, then cp, dp, pp; then the leaf group."""
    layouts: dict[str, Layout] = {}
    inner, middle = domain, leaf
    for dimension in ("tp", "cp", "dp", "pp"):
        rest = plan.degree(dimension)
        first = gcd(rest, inner)
        rest, inner = rest // first, inner // first
        second = gcd(rest, middle)
        rest, middle = rest // second, middle // second
        layouts[dimension] = Layout(first, second, rest)
    return Placement(**layouts)
