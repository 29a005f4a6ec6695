"""Design -> Evaluation: the exact model. Floor 4. In: an instance and an explicit design. Out: all figures and faults.

It starts from the design alone. The groups of ranks are read off the explicit rank map, the pipeline is played event by
event with embedding and head where they are, memory is taken on every stage, and each limit is checked again. The
formulas of a layer, a collective and a checkpoint are those of `codesign.cost`, called for one design.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from codesign.cost import architecture, legality, recompute, reliability
from codesign.cost.market import Market, NetworkOption, ServerOption, StorageOption
from codesign.cost.memory import VERDICTS, training_memory, verdict
from codesign.design import DIMENSIONS, TEXT_DECISIONS, Design, Plan
from codesign.design.evaluation import BillLine, Evaluation, LimitCheck, Memory, WorkloadEvaluation
from codesign.design.placement import rank_map
from codesign.exact.step import Spans, StepSeconds, spans, step
from codesign.spec.instance import Instance
from codesign.spec.workload import RECOMPUTE, RECOMPUTE_FORM

KEPT_STEPS = 4096
"""Steps that a judge remembers; designs that differ in storage only share one."""

ROUNDING = 1e-12
"""Relative excess over a limit that is forgiven: sums of prices in doubles are exact to this."""


def evaluate(instance: Instance, design: Design) -> Evaluation:
    """Judge one design.

    Raises
    ------
    SpecError
        If the design names hardware that the instance does not have.
    """
    return Judge(instance).evaluate(design)


class Judge:
    """The exact model of one instance; remembers the steps that it has played."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.market = Market(instance)
        self.workload = instance.workloads[0]
        profile = legality.PROFILES[self.workload.framework]
        self.case = legality.Case(
            self.workload.model, self.workload.sequence_length, self.workload.global_batch, profile
        )
        self.memory = training_memory(
            self.workload,
            instance.assumptions,
            profile.vocabulary_multiple or 1,
            blocks=True,
            within_domain=True,
            gathers_context=True,
        )
        self.evaluated = 0
        self._steps: OrderedDict[object, StepSeconds] = OrderedDict()
        self._spans: OrderedDict[object, Spans] = OrderedDict()

    # -- one design

    def evaluate(self, design: Design) -> Evaluation:
        """Judge a design: all figures where it can be played, and every rule or limit that it breaks."""
        self.evaluated += 1
        option, network, storage = self.market.find(design.purchase)
        faults = [
            *self._plan_faults(design),
            *self._placement_faults(design, option, network),
            *self._interval_faults(design, storage),
        ]
        if faults:
            return self._unplayable(design, option, network, storage, faults)
        plan, purchase = design.plan, design.purchase
        seconds = self._step(design, option, network)
        tokens = self.workload.global_batch * self.workload.sequence_length
        reading_s = float(
            tokens
            * self.instance.assumptions.bytes_per_token
            / self.market.read_bytes_per_s(option, storage, purchase.servers)
        )
        step_time_s = max(seconds.total_s, reading_s)
        parts = {**seconds.parts_s, "waiting for data": step_time_s - seconds.total_s}
        overhead = float(
            self.market.overhead(option, storage, purchase.servers, purchase.checkpoint_interval_s)
            if storage.product is not None
            else 1.0
        )
        train_s = None
        if self.workload.tokens is not None:
            train_s = self.workload.tokens / tokens * overhead * step_time_s
        memory = self._memory(design, option)
        saves = storage.product is not None
        flops = float(architecture.model_flops_per_token(self.workload.model, self.workload.sequence_length))
        peak = plan.world * option.server.gpu.peak(self.workload.precision)
        workload = WorkloadEvaluation(
            step_time_s=step_time_s,
            tokens_per_s=tokens / step_time_s,
            mfu=flops * tokens / step_time_s / peak,
            hfu=self._hardware_flops(plan, flops) * tokens / step_time_s / peak,
            goodput=1.0 / overhead,
            time_to_train_s=train_s,
            memory=memory,
            breakdown_s=parts,
            bubble_fraction=seconds.bubble_fraction,
            checkpoint_save_s=float(self.market.save_s(option, storage, purchase.servers)) if saves else None,
            checkpoint_load_s=float(self.market.load_s(option, storage, purchase.servers)) if saves else None,
            interruption_s=float(
                reliability.mean_time_to_interruption_s(
                    self.instance.assumptions.failure_gpu_hours, purchase.servers * option.server.gpus
                )
            )
            if saves
            else None,
        )
        bill, capex_usd, power_w = self._bill(design, option, network, storage)
        total_usd = None
        if train_s is not None:
            total_usd = capex_usd + self.instance.assumptions.electricity_usd_per_joule * power_w * train_s
        gpus = purchase.servers * option.server.gpus
        minimised = self._minimised(step_time_s, overhead, train_s, capex_usd, power_w, total_usd, gpus)
        limits = self._limits(capex_usd, power_w, train_s, gpus)
        faults = _broken(limits)
        faults += self._choice_faults(plan)
        if memory.worst_rank_bytes > memory.capacity_bytes:
            faults.append(
                f"memory: stage {memory.worst_stage} needs {memory.worst_rank_bytes / 1e9:.2f} GB a GPU, "
                f"{option.server.gpu.name} has {memory.capacity_bytes / 1e9:.2f} GB"
            )
        if not np.isfinite(overhead):
            faults.append("goodput: the run makes no headway between failures at this checkpoint interval")
        if not self.market.holds_checkpoints(storage):
            faults.append("storage: the checkpoints that are kept do not fit")
        return Evaluation(
            objective=self.to_user(minimised),
            minimised=minimised,
            capex_usd=capex_usd,
            power_w=power_w,
            total_cost_usd=total_usd,
            bill_of_materials=bill,
            workloads={self.workload.name: workload},
            limits=limits,
            violations=tuple(faults),
        )

    def step_time_s(self, design: Design) -> float:
        """Seconds of computing and communicating in one step of a design whose plan and placement are legal."""
        option, network, _ = self.market.find(design.purchase)
        return self._step(design, option, network).total_s

    # -- checks

    def _plan_faults(self, design: Design) -> list[str]:
        plan = design.plan
        values = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
        faults = [
            f"{name}: {value} is not a whole number of at least {least}"
            for name, value in values.items()
            if name not in TEXT_DECISIONS
            and (not isinstance(value, int) or value < (least := 0 if name == "zero" else 1))
        ]
        if not isinstance(plan.recompute, str) or not re.fullmatch(RECOMPUTE_FORM, plan.recompute):
            faults.append(f"recompute: {plan.recompute!r} is none of {', '.join(RECOMPUTE)}, full:N")
        faults += [
            f"{name}: {values[name]!r} is none of {', '.join(texts)}"
            for name, texts in legality.TEXTS.items()
            if values[name] not in texts
        ]
        if plan.zero > 3:
            faults.append(f"zero: stage {plan.zero} does not exist")
        if design.workload != self.workload.name:
            faults.append(f"workload: {design.workload!r} is not the {self.workload.name!r} of the instance")
        if faults:
            return faults
        return [f"{broken.rule}: {broken.message}" for broken in legality.check(self.case, values)]

    def _choice_faults(self, plan: Plan) -> list[str]:
        """Where a plan leaves what the instance states of it."""
        stated = {name: getattr(self.workload.plan, name) for name in Plan.__dataclass_fields__}
        return [
            f"plan.{name}: {getattr(plan, name)} is not what the instance states ({', '.join(map(str, allowed))})"
            for name, allowed in stated.items()
            if allowed is not None and getattr(plan, name) not in allowed
        ]

    def _placement_faults(self, design: Design, option: ServerOption, network: NetworkOption) -> list[str]:
        plan, placement, purchase, server = design.plan, design.placement, design.purchase, option.server
        faults = [
            f"placement: the layout of {d} gives {placement.layout(d).degree} ranks, its degree is {plan.degree(d)}"
            for d in DIMENSIONS
            if placement.layout(d).degree != plan.degree(d)
        ]
        used, leaf, pod = (placement.ranks_in(tier) for tier in ("domain", "leaf", "pod"))
        if used > server.gpus:
            faults.append(f"placement: {used} ranks in a domain of {server.gpus} GPUs ({server.name})")
        if leaf * pod != purchase.servers:
            faults.append(f"placement: it fills {leaf} x {pod} = {leaf * pod} servers, {purchase.servers} are taken")
        counted = self.market.counted(network, server, np.asarray([max(1, purchase.servers)]))
        if not counted.feasible[0]:
            faults.append(f"network: {purchase.network.kind} cannot join {purchase.servers} servers")
        elif leaf > int(counted.leaf_block[0]):
            faults.append(f"placement: {leaf} servers in a leaf group of {int(counted.leaf_block[0])}")
        if network.owned_servers and purchase.servers > network.owned_servers:
            faults.append(
                f"network: {purchase.network.kind} is owned for {network.owned_servers} servers and not offered, "
                f"{purchase.servers} are taken"
            )
        if not option.offered and purchase.servers > option.owned:
            faults.append(f"servers: {purchase.servers} x {server.name}, but {option.owned} are owned and none offered")
        return faults

    def _interval_faults(self, design: Design, storage: StorageOption) -> list[str]:
        interval_s = design.purchase.checkpoint_interval_s
        if storage.product is None or (interval_s > 0.0 and np.isfinite(interval_s)):
            return []
        return [f"checkpoints: {interval_s!r} s is no time between two checkpoints"]

    def _limits(self, capex_usd: float, power_w: float, train_s: float | None, gpus: int) -> tuple[LimitCheck, ...]:
        stated = self.instance.limits
        figures = (
            ("capex", capex_usd, stated.capex_usd, "USD"),
            ("power", power_w, stated.power_w, "W"),
            ("deadline", train_s, stated.deadline_s, "s"),
            ("gpus", float(gpus), stated.gpus, "GPUs"),
        )
        return tuple(
            LimitCheck(name, value, float(most), unit, value <= most * (1.0 + ROUNDING))
            for name, value, most, unit in figures
            if most is not None and value is not None
        )

    # -- figures

    def _step(self, design: Design, option: ServerOption, network: NetworkOption) -> StepSeconds:
        rates = self.market.rates(option, network)
        key = (design.plan, design.placement, option.server.name, rates)
        known = self._steps.get(key)
        if known is None:
            known = step(
                self.workload,
                design.plan,
                self._groups(design),
                option.server.gpu,
                rates,
                self.instance.assumptions,
                self.memory,
            )
            self._steps[key] = known
            if len(self._steps) > KEPT_STEPS:
                self._steps.popitem(last=False)
        return known

    def _groups(self, design: Design) -> Spans:
        plan = design.plan
        key = (plan.tp, plan.cp, plan.ep, plan.expert_tp, plan.pp, plan.dp, design.placement)
        known = self._spans.get(key)
        if known is None:
            known = self._spans[key] = spans(plan, rank_map(plan, design.placement))
            if len(self._spans) > KEPT_STEPS:
                self._spans.popitem(last=False)
        return known

    def _memory(self, design: Design, option: ServerOption) -> Memory:
        values = {name: getattr(design.plan, name) for name in Plan.__dataclass_fields__}
        values |= {f"{d}_layout": design.placement.layout(d).domain for d in DIMENSIONS}
        by_stage = self.memory.by_stage(values)
        stages = np.sum(list(by_stage.values()), axis=0)
        worst = int(np.argmax(stages))
        capacity = option.server.gpu.memory_bytes
        return Memory(
            worst_stage=worst,
            worst_rank_bytes=float(stages[worst]),
            capacity_bytes=capacity,
            verdict=VERDICTS[int(verdict(stages[worst], capacity, self.instance.assumptions.memory_band))],
            parts_bytes={name: float(values[worst]) for name, values in by_stage.items()},
            stages_bytes=tuple(float(one) for one in stages),
        )

    def _hardware_flops(self, plan: Plan, model_flops: float) -> float:
        """FLOPs a token with what is recomputed: layers' forward again, of `full:N` their mean; or parts of layers."""
        model, sequence = self.workload.model, self.workload.sequence_length
        core = float(model.layers * architecture.attention_flops_per_token(model, sequence))
        layers = model_flops / 3.0 - architecture.head_flops_per_token(model)
        if plan.recompute == "mlp":
            return model_flops + architecture.feed_forward_flops_per_token(model)
        if plan.recompute.startswith("full:"):
            count = int(recompute.whole_layers(plan.recompute))
            kinds = architecture.kinds(model)
            again = sum(
                float(recompute.layers_of_kind(model, kind, plan.pp, plan.virtual_stages, count).sum())
                for kind in kinds
            )
            return model_flops + layers * again / model.layers
        return model_flops + {"none": 0.0, "selective": core, "full": layers}[plan.recompute]

    def _bill(
        self, design: Design, option: ServerOption, network: NetworkOption, storage: StorageOption
    ) -> tuple[tuple[BillLine, ...], float, float]:
        lines = self.market.lines(option, network, storage, np.asarray([design.purchase.servers]))
        bill = [
            BillLine(
                one.item,
                int(one.count[0]),
                one.unit_usd,
                int(one.count[0]) * one.unit_usd,
                int(one.count[0]) * one.unit_w,
            )
            for one in lines
            if int(one.count[0])
        ]
        installation = self.instance.assumptions.installation_fraction * sum(line.total_usd for line in bill)
        if installation:
            bill.append(BillLine("installation", 1, installation, installation, 0.0))
        capex = sum(line.total_usd for line in bill)
        power = self.instance.assumptions.pue * sum(line.power_w for line in bill)
        return tuple(bill), capex, power

    def _minimised(
        self,
        step_s: float,
        overhead: float,
        train_s: float | None,
        capex_usd: float,
        power_w: float,
        total_usd: float | None,
        gpus: int,
    ) -> float:
        constants = self.instance.assumptions
        objective: str = self.instance.objective  # or one of the quantities that the analysis of conflicts minimises
        if objective in ("step_time", "tokens_per_s"):
            return step_s
        if objective == "tokens_per_usd":
            usd_per_s = capex_usd / constants.depreciation_s + power_w * constants.electricity_usd_per_joule
            return usd_per_s * overhead * step_s / (self.workload.global_batch * self.workload.sequence_length)
        if objective == "gpus":
            return float(gpus)
        if objective in ("capex", "power"):
            return capex_usd if objective == "capex" else power_w
        value = train_s if objective == "time_to_train" else total_usd
        assert value is not None  # the instance was refused without tokens
        return value

    def to_user(self, minimised: float) -> float:
        """The objective as the user named it."""
        tokens = self.workload.global_batch * self.workload.sequence_length
        if self.instance.objective == "tokens_per_s":
            return tokens / minimised
        if self.instance.objective == "tokens_per_usd":
            return 1.0 / minimised
        return minimised

    def _unplayable(
        self,
        design: Design,
        option: ServerOption,
        network: NetworkOption,
        storage: StorageOption,
        faults: list[str],
    ) -> Evaluation:
        """An evaluation without times: the design cannot run."""
        bill, capex_usd, power_w = self._bill(design, option, network, storage)
        never = float("inf")
        limits = self._limits(capex_usd, power_w, None, design.purchase.servers * option.server.gpus)
        return Evaluation(
            objective=float("nan"),
            minimised=never,
            capex_usd=capex_usd,
            power_w=power_w,
            total_cost_usd=None,
            bill_of_materials=bill,
            workloads={},
            limits=limits,
            violations=(*faults, *_broken(limits)),
        )


def _broken(limits: Iterable[LimitCheck]) -> list[str]:
    return [
        f"{check.name}: {check.value:.6g} {check.unit} is over the limit of {check.most:.6g} {check.unit}"
        for check in limits
        if not check.kept
    ]
