"""Which parallel plans a framework can run. Floor 3.

In: a `Case` (model, sequence length, global batch, framework profile, GPUs) and a plan, a mapping from the
names of the plan's decisions to values or arrays that broadcast: `tp cp ep pp dp virtual_stages micro_batch
zero`, and those of `USUAL` where they differ from it. Out: `legal`, one boolean for each plan; `check`, for one plan
every rule that it breaks, with the numbers and with the values that would be legal.

A rule belongs to a framework, not to a model: what the frameworks do differently is data in `frameworks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture, stages
from codesign.cost.frameworks import PROFILES as PROFILES
from codesign.cost.frameworks import FrameworkProfile as FrameworkProfile
from codesign.spec.workload import ContextExchange, Schedule, ShardWithin

if TYPE_CHECKING:
    from codesign.cost.architecture import BoolArray
    from codesign.spec.workload import Model

IntArray = npt.NDArray[np.int64]
Choices = npt.NDArray[Any]
"""Values of a decision: whole numbers, or texts."""

USUAL: Mapping[str, Any] = {
    "schedule": "1f1b",
    "shard_within": "group",
    "expert_tp": 1,
    "context_exchange": "ring",
}
"""What a decision is where a plan does not say."""

TEXTS: Mapping[str, tuple[str, ...]] = {
    "schedule": get_args(Schedule),
    "shard_within": get_args(ShardWithin),
    "context_exchange": get_args(ContextExchange),
}
"""Values of the decisions that are words and whose rules stand here."""

SHOWN_VALUES = 12  # legal values that a message lists at most, those nearest to the one found


@dataclass(frozen=True)
class Case:
    """What a plan is judged against; `gpus`, if given, must be filled exactly."""

    model: Model
    sequence_length: int
    global_batch: int
    profile: FrameworkProfile
    gpus: int | None = None


Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A named predicate over some decisions; `says` puts the numbers of one failing plan into words."""

    name: str
    decisions: tuple[str, ...]
    holds: Callable[[Case, dict[str, Choices]], BoolArray]
    says: Callable[[Case, dict[str, Any]], str]


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks; `legal` has, for each decision of the rule, the values that mend it."""

    rule: str
    message: str
    legal: dict[str, tuple[Any, ...]]


# ---------------------------------------------------------------------------------------------- small figures


def world(plan: Plan) -> IntArray:
    """GPUs of a plan: tp * cp * pp * dp. Expert groups are carved from these and add none."""
    return np.asarray(
        np.asarray(plan["tp"], dtype=np.int64) * plan["cp"] * plan["pp"] * np.asarray(plan["dp"]),
        dtype=np.int64,
    )


def expert_data_parallel(profile: FrameworkProfile, plan: Plan) -> IntArray:
    """Ranks that hold the same experts: a stage's over `ep` and expert tensor ranks (NVIDIA/Megatron-LM#5958)."""
    held_by = np.asarray(plan["ep"], dtype=np.int64) * _choice(plan, "expert_tp")
    return np.asarray(_expert_ranks(profile, plan) // held_by)


def sequence_multiple(tp: npt.ArrayLike, cp: npt.ArrayLike) -> IntArray:
    """What the sequence length must be a multiple of: cp * lcm(2, tp), or `tp` without context parallelism.

    Ring context parallelism gives each rank two pieces for balance, and sequence parallelism cuts a rank's
    share by `tp`. Source: NVIDIA-NeMo/RL PR#3563.
    """
    tp, cp = np.asarray(tp, dtype=np.int64), np.asarray(cp, dtype=np.int64)
    return np.asarray(np.where(cp > 1, cp * np.lcm(2, tp), tp))


def micro_batches(global_batch: int, dp: npt.ArrayLike, micro_batch: npt.ArrayLike) -> IntArray:
    """Micro-batches of a step, rounded down where the batch does not divide."""
    return np.asarray(global_batch // (np.asarray(dp, dtype=np.int64) * np.asarray(micro_batch, dtype=np.int64)))


def nearest_legal_batches(global_batch: int, dp: int, micro_batch: int) -> tuple[int, ...]:
    """The nearest batches that `dp * micro_batch` divides, below and above; the batch itself if it is one."""
    samples = dp * micro_batch
    below = global_batch // samples * samples
    if below == global_batch:
        return (global_batch,)
    return tuple(batch for batch in (below, below + samples) if batch)


def batch_that_fills_the_pipeline(pp: int, dp: int, micro_batch: int) -> int:
    """Least global batch with as many micro-batches as stages; with fewer the pipeline is never full."""
    return pp * dp * micro_batch


def uneven_splits(layers: int, pp: int) -> tuple[tuple[int, int], ...]:
    """Explicit splits with equal ends: (layers of first and last stage, of each between), lightest first.

    For frameworks that take explicit counts (Megatron-LM: `--decoder-first-pipeline-num-layers` and its
    counterpart).
    """
    if pp < 3:
        return ()
    found = [
        (end, (layers - 2 * end) // (pp - 2))
        for end in range(1, (layers - pp + 2) // 2 + 1)
        if (layers - 2 * end) % (pp - 2) == 0
    ]
    return tuple(sorted(found, key=lambda split: (max(split), abs(split[0] - split[1]))))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(value for value in range(1, number + 1) if number % value == 0)


def _expert_ranks(profile: FrameworkProfile, plan: Plan) -> IntArray:
    ranks: IntArray = np.asarray(1, dtype=np.int64)
    for name in profile.expert_ranks:
        ranks = ranks * np.asarray(plan[name], dtype=np.int64)
    return ranks


# ------------------------------------------------------------------------------------------------------ rules


def _divides(divisor: IntArray, number: int | IntArray) -> BoolArray:
    return np.asarray(number % divisor == 0)


def _heads(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return _divides(plan["tp"], case.model.heads)


def _kv_heads(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    if case.model.multi_latent is not None:
        return np.ones(plan["tp"].shape, dtype=np.bool_)
    shared = _divides(plan["tp"], case.model.kv_heads)
    if not case.profile.replicates_kv_heads:
        return shared
    return np.asarray(shared | (plan["tp"] % case.model.kv_heads == 0))


def _kv_heads_say(case: Case, plan: dict[str, int]) -> str:
    tail = " and it does not replicate them" if not case.profile.replicates_kv_heads else " nor the other way round"
    return (
        f"tp {plan['tp']} does not divide the {case.model.kv_heads} key and value heads of "
        f"{case.model.name}; {case.profile.name} shards these heads{tail}"
    )


def _ffn(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    fits = np.ones(plan["tp"].shape, dtype=np.bool_)
    for kind in architecture.kinds(case.model):
        if width := architecture.ffn_width(case.model, kind):
            fits &= _divides(plan["tp"], width)
    return fits


def _vocabulary(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    if case.profile.vocabulary_multiple is not None:
        return np.ones(plan["tp"].shape, dtype=np.bool_)
    return _divides(plan["tp"], case.model.vocabulary)


def _context(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return np.asarray((plan["cp"] == 1) | case.profile.context_parallel)


def _sequence(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return _divides(sequence_multiple(plan["tp"], plan["cp"]), case.sequence_length)


def _sequence_says(case: Case, plan: dict[str, int]) -> str:
    step = int(sequence_multiple(plan["tp"], plan["cp"]))
    lengths = nearest_legal_batches(case.sequence_length, step, 1)
    return (
        f"sequence length {case.sequence_length} is no multiple of {step}, which tp {plan['tp']} with "
        f"cp {plan['cp']} needs (cp * lcm(2, tp), or tp without cp); "
        f"nearest legal lengths: {_listed(lengths)}"
    )


def _batch(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return _divides(plan["dp"] * plan["micro_batch"], case.global_batch)


def _batch_says(case: Case, plan: dict[str, int]) -> str:
    samples = plan["dp"] * plan["micro_batch"]
    batches = nearest_legal_batches(case.global_batch, plan["dp"], plan["micro_batch"])
    return (
        f"global batch {case.global_batch} is no multiple of dp {plan['dp']} * micro-batch "
        f"{plan['micro_batch']} = {samples} ({case.global_batch / samples:.2f} micro-batches); "
        f"nearest legal batches: {_listed(batches)}"
    )


def _layers(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return stages.model_splits(case.model, plan["pp"], plan["virtual_stages"])


def _layers_say(case: Case, plan: dict[str, int]) -> str:
    layers, pp, chunks = case.model.layers, plan["pp"], plan["pp"] * plan["virtual_stages"]
    message = (
        f"{layers} layers cannot be placed on pp {pp} * virtual stages {plan['virtual_stages']} = {chunks} "
        f"chunks: {chunks} divides neither {layers} nor {layers} + 1 to "
        f"{stages.MOST_LAYERS_FOR_ENDS} (embedding and loss counted as layers)"
    )
    if splits := uneven_splits(layers, pp):
        end, middle = splits[0]
        message += f"; explicit counts could be {end} on first and last stage and {middle} on the others"
    return message


def _interleaving(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    plain = plan["virtual_stages"] == 1
    return np.asarray(plain | (case.profile.interleaving & (plan["pp"] > 1)))


def _interleaving_says(case: Case, plan: dict[str, int]) -> str:
    if not case.profile.interleaving:
        v = plan["virtual_stages"]
        return f"{case.profile.name} has no interleaved schedule, so virtual stages {v} must be 1"
    return f"virtual stages {plan['virtual_stages']} need a pipeline, but pp is {plan['pp']}"


def _groups(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    step = micro_batches(case.global_batch, plan["dp"], plan["micro_batch"])
    return np.asarray((plan["virtual_stages"] == 1) | ((step % plan["pp"] == 0) & (step > 0)))


def _groups_say(case: Case, plan: dict[str, int]) -> str:
    step = int(micro_batches(case.global_batch, plan["dp"], plan["micro_batch"]))
    return (
        f"the interleaved schedule runs micro-batches in groups of pp {plan['pp']}, which does not divide "
        f"the {step} micro-batches of a step (global batch {case.global_batch}, dp {plan['dp']}, "
        f"micro-batch {plan['micro_batch']})"
    )


def _zero(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return np.asarray((plan["zero"] < 2) | (plan["pp"] == 1))


def _zero_says(case: Case, plan: dict[str, int]) -> str:
    return (
        f"ZeRO stage {plan['zero']} with pp {plan['pp']}: a pipeline keeps whole gradients until the last "
        "micro-batch, so stages 2 and 3 are taken without a pipeline only, as DeepSpeed enforces"
    )


def _experts(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return _divides(plan["ep"], case.model.experts) if case.model.experts else np.asarray(plan["ep"] == 1)


def _experts_say(case: Case, plan: dict[str, int]) -> str:
    if not case.model.experts:
        return f"{case.model.name} has no experts, so ep {plan['ep']} must be 1"
    return f"ep {plan['ep']} does not divide the {case.model.experts} experts of {case.model.name}"


def _expert_groups(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    return _divides(plan["ep"] * plan["expert_tp"], _expert_ranks(case.profile, plan))


def _expert_groups_say(case: Case, plan: dict[str, int]) -> str:
    names = " * ".join(case.profile.expert_ranks)
    cut = f" * expert_tp {plan['expert_tp']}" if plan["expert_tp"] > 1 else ""
    return (
        f"ep {plan['ep']}{cut} does not divide {names} = {int(_expert_ranks(case.profile, plan))}, the ranks "
        f"of a stage that {case.profile.name} carves expert groups from"
    )


def _expert_width(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    if not case.model.experts:
        return np.asarray(plan["expert_tp"] == 1)
    return _divides(plan["expert_tp"], case.model.expert_ffn_hidden)


def _expert_width_says(case: Case, plan: dict[str, int]) -> str:
    if not case.model.experts:
        return f"{case.model.name} has no experts, so expert_tp {plan['expert_tp']} must be 1"
    width = case.model.expert_ffn_hidden
    return f"expert_tp {plan['expert_tp']} does not divide the width {width} of an expert of {case.model.name}"


def _schedule(case: Case, plan: dict[str, Choices]) -> BoolArray:
    had = np.isin(plan["schedule"], case.profile.schedules)
    split = (plan["virtual_stages"] == 1) & (plan["pp"] > 1)
    return np.asarray(had & ((plan["schedule"] == "1f1b") | split))


def _schedule_says(case: Case, plan: dict[str, Any]) -> str:
    if plan["schedule"] not in case.profile.schedules:
        return f"{case.profile.name} has no schedule {plan['schedule']}, only {', '.join(case.profile.schedules)}"
    return (
        f"schedule {plan['schedule']} is of a pipeline with one chunk a stage, but pp is {plan['pp']} and "
        f"virtual stages are {plan['virtual_stages']}"
    )


def _shard_within(case: Case, plan: dict[str, Choices]) -> BoolArray:
    return np.asarray((plan["shard_within"] == "group") | ((plan["zero"] > 0) & (case.model.experts == 0)))


def _shard_within_says(case: Case, plan: dict[str, Any]) -> str:
    if plan["zero"] == 0:
        return "shard_within domain with ZeRO stage 0: nothing is sharded"
    return f"shard_within domain is modelled for dense models only, and {case.model.name} has experts"


def _context_exchange(case: Case, plan: dict[str, Choices]) -> BoolArray:
    return np.asarray((plan["context_exchange"] == "ring") | (plan["cp"] > 1))


def _context_exchange_says(case: Case, plan: dict[str, Any]) -> str:
    return f"context_exchange {plan['context_exchange']} with cp {plan['cp']}: there is nothing to exchange"


def _world(case: Case, plan: dict[str, IntArray]) -> BoolArray:
    ranks = world(plan)
    return np.ones(ranks.shape, dtype=np.bool_) if case.gpus is None else np.asarray(ranks == case.gpus)


def _world_says(case: Case, plan: dict[str, int]) -> str:
    return (
        f"tp {plan['tp']} * cp {plan['cp']} * pp {plan['pp']} * dp {plan['dp']} = {int(world(plan))} ranks, "
        f"but there are {case.gpus} GPUs"
    )


def _heads_say(case: Case, plan: dict[str, int]) -> str:
    return f"tp {plan['tp']} does not divide the {case.model.heads} attention heads of {case.model.name}"


def _ffn_says(case: Case, plan: dict[str, int]) -> str:
    widths = tuple(architecture.ffn_width(case.model, kind) for kind in architecture.kinds(case.model))
    return f"tp {plan['tp']} does not divide the feed-forward width of {case.model.name} ({_listed(widths)})"


def _vocabulary_says(case: Case, plan: dict[str, int]) -> str:
    words = case.model.vocabulary
    return f"tp {plan['tp']} does not divide the vocabulary {words}, which {case.profile.name} does not pad"


def _context_says(case: Case, plan: dict[str, int]) -> str:
    return f"{case.profile.name} has no ring context parallelism, so cp {plan['cp']} must be 1"


RULES: tuple[Rule, ...] = (
    Rule("attention heads", ("tp",), _heads, _heads_say),
    Rule("key and value heads", ("tp",), _kv_heads, _kv_heads_say),
    Rule("feed-forward width", ("tp",), _ffn, _ffn_says),
    Rule("vocabulary", ("tp",), _vocabulary, _vocabulary_says),
    Rule("context parallelism", ("cp",), _context, _context_says),
    Rule("sequence length", ("cp", "tp"), _sequence, _sequence_says),
    Rule("global batch", ("dp", "micro_batch"), _batch, _batch_says),
    Rule("layer split", ("pp", "virtual_stages"), _layers, _layers_say),
    Rule("interleaving", ("virtual_stages", "pp"), _interleaving, _interleaving_says),
    Rule("interleaved groups", ("pp", "virtual_stages", "dp", "micro_batch"), _groups, _groups_say),
    Rule("sharding with a pipeline", ("zero", "pp"), _zero, _zero_says),
    Rule("experts", ("ep",), _experts, _experts_say),
    Rule("expert groups", ("ep", "expert_tp", "tp", "cp", "dp"), _expert_groups, _expert_groups_say),
    Rule("expert width", ("expert_tp",), _expert_width, _expert_width_says),
    Rule("schedule", ("schedule", "pp", "virtual_stages"), _schedule, _schedule_says),
    Rule("sharding in a domain", ("shard_within", "zero"), _shard_within, _shard_within_says),
    Rule("context exchange", ("context_exchange", "cp"), _context_exchange, _context_exchange_says),
    Rule("world size", ("tp", "cp", "pp", "dp"), _world, _world_says),
)


# ---------------------------------------------------------------------------------------------------- judging


def rule(name: str) -> Rule:
    """The rule of that name."""
    return next(candidate for candidate in RULES if candidate.name == name)


def holds(which: Rule, case: Case, plan: Plan) -> BoolArray:
    """One rule for a plan or for arrays of plans; needs only the decisions of the rule."""
    names = {*which.decisions}
    return which.holds(case, {name: _choice(plan, name) for name in names})


def _choice(plan: Plan, name: str) -> Choices:
    """A decision's values as an array of whole numbers or texts, the usual one where the plan does not say."""
    if isinstance(USUAL.get(name), str):
        return np.asarray(plan.get(name, USUAL[name]))
    return np.asarray(plan[name] if name in plan else USUAL[name], dtype=np.int64)


def legal(case: Case, plan: Plan) -> BoolArray:
    """Whether plans keep all rules; the plan's arrays broadcast."""
    verdict: BoolArray = np.asarray(True)
    for which in RULES:
        verdict = verdict & holds(which, case, plan)
    return verdict


def check(case: Case, plan: Plan) -> tuple[Violation, ...]:
    """All rules that one plan breaks, in the order of `RULES`; empty for a legal plan."""
    found = []
    for which in RULES:
        if not bool(holds(which, case, plan)):
            values = {name: legal_values(which, case, plan, name) for name in which.decisions}
            numbers = {name: _choice(plan, name).item() for name in which.decisions}
            found.append(Violation(which.name, _message(which.says(case, numbers), numbers, values), values))
    return tuple(found)


def explain(case: Case, plan: Plan) -> str:
    """One line for each broken rule, or the word that the plan is legal."""
    broken = check(case, plan)
    if not broken:
        return f"legal for {case.profile.name}"
    return "\n".join(f"{violation.rule}: {violation.message}" for violation in broken)


def legal_values(which: Rule, case: Case, plan: Plan, decision: str) -> tuple[Any, ...]:
    """Values of one decision that satisfy a rule while the plan's other decisions stay."""
    candidates = _candidates(case, decision)
    fixed = {name: np.broadcast_to(_choice(plan, name), candidates.shape) for name in which.decisions}
    fixed[decision] = candidates
    return tuple(candidates[which.holds(case, fixed)].tolist())


def _candidates(case: Case, decision: str) -> Choices:
    """Every value that could make sense: no degree exceeds what it cuts."""
    if decision in TEXTS:
        return np.asarray(TEXTS[decision])
    if decision == "zero":
        return np.arange(4, dtype=np.int64)
    most = {
        "tp": case.model.heads,
        "cp": case.sequence_length,
        "pp": case.model.layers,
        "virtual_stages": case.model.layers,
        "ep": max(case.model.experts, 1),
        "expert_tp": max(case.model.expert_ffn_hidden, 1),
        "dp": case.global_batch,
        "micro_batch": case.global_batch,
    }[decision]
    return np.arange(1, most + 1, dtype=np.int64)


def _message(said: str, numbers: dict[str, Any], values: dict[str, tuple[Any, ...]]) -> str:
    lists = [f"legal {name}: {_near(values[name], numbers[name])}" for name in numbers if values[name]]
    return f"{said} ({'; '.join(lists)})" if lists else said


def _near(values: tuple[Any, ...], found: Any) -> str:
    if isinstance(found, str):
        return ", ".join(values)
    shown = sorted(sorted(values, key=lambda value: (abs(value - found), value))[:SHOWN_VALUES])
    before = "..., " if shown[0] != min(values) else ""
    after = ", ..." if shown[-1] != max(values) else ""
    return before + _listed(tuple(shown)) + after


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(str(value) for value in values)
