"""The exact model: worked by hand for one and two GPUs, figures that add up, and every fault of a design found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from codesign.design import Design, Layout, Network, Placement, Plan, Purchase, StoragePurchase
from codesign.design.evaluation import Evaluation
from codesign.errors import SpecError
from codesign.exact import Judge, evaluate
from codesign.spec.instance import Instance, parse

ONE = Layout(1, 1, 1)
HAND = """
schema: 1
name: by-hand
workloads:
  - model: {name: tiny, layers: 2, hidden: 1024, heads: 8, ffn_hidden: 4096, gated: false, vocabulary: 1024,
            tied_embeddings: false}
    sequence_length: 1024
    global_batch: 4
    tokens: 4096000
offers: none
inventory:
  - count: 1
    server:
      name: bench
      gpu:
        name: round
        peak_flops: {bf16: 100 TFLOP/s}
        memory: 10GB
        memory_bandwidth: 1TB/s
        domain_bandwidth: 1TB/s
        domain_latency: 1us
        efficiency: {matmul_ceiling: 0.5, attention_ceiling: 0.5, memory_ceiling: 1, tokens_half: 0, width_half: 0,
                     launch: 1ms}
      gpus: 2
      nics: 1
      nic_bandwidth: 100Gb/s
      rails: 1
      power: 1kW
      storage_bandwidth: 1GB/s
      host_copy_bandwidth: 1GB/s
objective: step_time
assumptions: {gradient_bytes: 4, weight_bytes: 2, optimizer_bytes: 12, memory_fragmentation: 0, memory_reserved: 1GB}
"""


def hand_design(pp: int) -> Design:
    return Design(
        "pretrain",
        Plan(tp=1, cp=1, ep=1, pp=pp, dp=1, virtual_stages=1, micro_batch=1, recompute="none", zero=0),
        Placement(tp=ONE, cp=ONE, pp=Layout(pp, 1, 1), dp=ONE),
        Purchase("bench", 1, Network("none", 0, "", 1, ""), StoragePurchase("", 0), 0.0),
    )


# -- one layer, one micro-batch of 1024 tokens, hidden 1024; matrices and attention reach 50 TFLOP/s, memory 1 TB/s
# weights: qkv 1024 x 3072, output 1024 x 1024, feed-forward 2 x 1024 x 4096
WEIGHTS = 3_145_728 + 1_048_576 + 8_388_608
MATMUL_S = 2 * 1024 * WEIGHTS / 50e12  # 515.4 us; none of them is bound by memory: qkv 128.8 us against 14.7
# scores and weighted sum, causal half: 2 x 2 x 1024 x 1024 x 1024 / 2
ATTENTION_S = 2_147_483_648 / 50e12  # 42.9 us
# passes of 2 bytes over 1024 tokens: norms 2 x 2 x 1024, residuals 2 x 3 x 1024, rotary 2 x 2 x 1024, activation
# 2 x 4096
ELEMENTWISE_S = 2 * 1024 * (4096 + 6144 + 4096 + 8192) / 1e12  # 46.1 us
LAUNCH_S = 1e-3
FORWARD_S = MATMUL_S + ATTENTION_S + ELEMENTWISE_S + LAUNCH_S
BACKWARD_S = 2 * (MATMUL_S + ELEMENTWISE_S + LAUNCH_S) + 2.5 * ATTENTION_S
# embedding: read and write 1024 vectors of 2 x 1024 bytes; scatter twice that
EMBED_S = 2 * 2 * 1024 * 1024 / 1e12, 2 * 2 * 2 * 1024 * 1024 / 1e12
# head: 2 x 1024 x 1024 x 1024 FLOPs; norm read and written in 16 bit; 18 and 6 bytes a logit of 1024 x 1024
HEAD_S = (
    2 * 1024**3 / 50e12 + 2 * 2 * 1024**2 / 1e12 + 18 * 1024**2 / 1e12,
    2 * (2 * 1024**3 / 50e12 + 2 * 2 * 1024**2 / 1e12) + 6 * 1024**2 / 1e12,
)
LAYER_PARAMETERS = WEIGHTS + 2 * 1024  # and two norms
MATRIX = 1024 * 1024  # embedding, or head
OPTIMIZER_BYTES = 4 + 2 * 12 + 2  # read gradients, read and write states, write weights


class TestByHand:
    def test_one_gpu(self) -> None:
        """4 micro-batches x (2 layers x (f + b) + embedding + head) + optimizer."""
        found = evaluate(parse(HAND), hand_design(1))
        workload = found.workloads["pretrain"]
        parameters = 2 * LAYER_PARAMETERS + 2 * MATRIX + 1024  # and the final norm
        optimizer_s = OPTIMIZER_BYTES * parameters / 1e12
        step_s = 4 * (2 * (FORWARD_S + BACKWARD_S) + sum(EMBED_S) + sum(HEAD_S)) + optimizer_s
        assert step_s == pytest.approx(0.0406, rel=0.01)  # 8 x 4.84 ms are 38.7, ends 1.1, optimizer 0.8
        assert workload.step_time_s == pytest.approx(step_s, rel=1e-12)
        assert workload.breakdown_s["optimizer"] == pytest.approx(optimizer_s, rel=1e-12)
        assert workload.breakdown_s["embedding and head"] == pytest.approx(4 * sum(EMBED_S + HEAD_S), rel=1e-12)
        assert workload.breakdown_s["attention"] == pytest.approx(8 * 3.5 * ATTENTION_S, rel=1e-12)
        assert workload.breakdown_s["compute"] == pytest.approx(
            8 * 3 * (MATMUL_S + ELEMENTWISE_S + LAUNCH_S), rel=1e-12
        )
        assert workload.bubble_fraction == pytest.approx(0.0, abs=1e-15)
        # 1000 steps of 4096 tokens, no storage: no failures
        assert (workload.goodput, workload.checkpoint_save_s, workload.interruption_s) == (1.0, None, None)
        assert workload.time_to_train_s == pytest.approx(1000 * step_s, rel=1e-12)
        assert workload.tokens_per_s == pytest.approx(4096 / step_s, rel=1e-12)
        # three times the forward: matrices of 2 layers, causal half of the square, head
        flops = 3 * (2 * (2 * WEIGHTS + 2_147_483_648 / 1024) + 2 * MATRIX)
        assert workload.mfu == pytest.approx(flops * 4096 / step_s / 100e12, rel=1e-12)
        assert workload.hfu == workload.mfu
        # 18 bytes a parameter, 1 GB reserved
        memory = workload.memory
        states = sum(memory.parts_bytes[name] for name in ("weights", "gradients", "optimizer"))
        assert states == pytest.approx(18 * parameters, rel=1e-12)
        assert memory.parts_bytes["reserved"] == 1e9
        assert (memory.worst_stage, memory.capacity_bytes, memory.verdict) == (0, 1e10, "fits")
        # one owned server draws 1 kW at the default PUE and costs nothing
        assert (found.capex_usd, found.power_w) == (0.0, 1000.0 * parse(HAND).assumptions.pue)
        assert found.objective == found.minimised == workload.step_time_s
        assert found.feasible

    def test_two_stages_on_two_gpus(self) -> None:
        """One layer each, 4 micro-batches; the last stage, with the head, never waits once it has begun:

        a round trip to the first stage takes 2 transfers + b + embedding + f, less than f + b + head.
        So: first forward, transfer, 4 x last stage, transfer, last backward of the first stage, its optimizer.
        """
        transfer_s = 1e-6 + 2 * 1024 * 1024 / 1e12
        assert 2 * transfer_s + sum(EMBED_S) < sum(HEAD_S)
        first = FORWARD_S + EMBED_S[0], BACKWARD_S + EMBED_S[1]
        last_s = FORWARD_S + BACKWARD_S + sum(HEAD_S)
        optimizer_s = OPTIMIZER_BYTES * (LAYER_PARAMETERS + MATRIX) / 1e12
        step_s = first[0] + transfer_s + 4 * last_s + transfer_s + first[1] + optimizer_s
        workload = evaluate(parse(HAND), hand_design(2)).workloads["pretrain"]
        assert workload.step_time_s == pytest.approx(step_s, rel=1e-12)
        # told for the last stage, which works longest
        idle_s = step_s - 4 * last_s - OPTIMIZER_BYTES * (LAYER_PARAMETERS + MATRIX + 1024) / 1e12
        assert workload.breakdown_s["pipeline bubble and transfers"] == pytest.approx(idle_s, rel=1e-9)
        assert workload.bubble_fraction == pytest.approx(idle_s / step_s, rel=1e-9)

    def test_recomputation(self) -> None:
        """Selective runs the attention core again, full the whole forward of the layers."""
        base, selective, full = (
            evaluate(parse(HAND), replace(design, plan=replace(design.plan, recompute=kind))).workloads["pretrain"]
            for design in [hand_design(1)]
            for kind in ("none", "selective", "full")
        )
        assert selective.step_time_s - base.step_time_s == pytest.approx(8 * ATTENTION_S, rel=1e-9)
        assert full.step_time_s - base.step_time_s == pytest.approx(8 * FORWARD_S, rel=1e-9)
        flops = 2 * (2 * WEIGHTS + 2_147_483_648 / 1024) * 4096
        assert selective.hfu * selective.step_time_s - base.hfu * base.step_time_s == pytest.approx(
            2 * 2_147_483_648 / 1024 * 4096 / 100e12, rel=1e-9
        )
        assert full.hfu * full.step_time_s - base.hfu * base.step_time_s == pytest.approx(flops / 100e12, rel=1e-9)
        assert full.mfu * full.step_time_s == pytest.approx(base.mfu * base.step_time_s, rel=1e-12)


class TestFigures:
    def test_they_add_up(self, instances: Any, instance_name: str) -> None:
        case = instances.case(instance_name, 60, seed=11)
        instance = case.model.instance
        workload = instance.workloads[0]
        for design, found in zip(case.designs, case.evaluations, strict=True):
            figures = found.workloads["pretrain"]
            assert sum(figures.breakdown_s.values()) == pytest.approx(figures.step_time_s, rel=1e-12)
            assert min(figures.breakdown_s.values()) >= 0
            assert sum(line.total_usd for line in found.bill_of_materials) == pytest.approx(found.capex_usd, rel=1e-12)
            watts = sum(line.power_w for line in found.bill_of_materials)
            assert found.power_w == pytest.approx(instance.assumptions.pue * watts, rel=1e-12)
            assert all(line.total_usd == line.count * line.unit_usd for line in found.bill_of_materials)
            tokens = workload.global_batch * workload.sequence_length
            assert figures.tokens_per_s == tokens / figures.step_time_s
            assert 0 < figures.mfu <= figures.hfu < 1
            assert 0 < figures.goodput <= 1
            if workload.tokens is not None:
                train_s = workload.tokens / figures.tokens_per_s / figures.goodput
                assert figures.time_to_train_s == pytest.approx(train_s, rel=1e-12)
            memory = figures.memory
            assert len(memory.stages_bytes) == design.plan.pp
            assert memory.worst_rank_bytes == max(memory.stages_bytes) == memory.stages_bytes[memory.worst_stage]
            assert sum(memory.parts_bytes.values()) == pytest.approx(memory.worst_rank_bytes, rel=1e-12)
            over = memory.worst_rank_bytes > memory.capacity_bytes
            assert over == any(fault.startswith("memory: ") for fault in found.violations)
            assert not (over and memory.verdict == "fits")
            assert all(check.kept == (check.value <= check.most) for check in found.limits)
            assert found.feasible == (not over and all(check.kept for check in found.limits))

    def test_mfu(self, instances: Any) -> None:
        """Llama 3.1 8B: 6.98e9 weights in matrices of layers, 525,336,576 in the head, 32 x 4096 x s in the core."""
        case = instances.case("storage-8b", 40, seed=12)
        per_layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
        flops = 3 * (2 * 32 * per_layer + 2 * 4096 * 128256 + 32 * 0.5 * 4 * 4096 * 8192)
        peaks = {"hgx-h100": 989e12, "dgx-b200": 2250e12}
        for design, found in zip(case.designs, case.evaluations, strict=True):
            figures = found.workloads["pretrain"]
            peak = design.plan.world * peaks[design.purchase.server]
            assert figures.mfu == pytest.approx(flops * figures.tokens_per_s / peak, rel=1e-12)

    def test_the_objective_is_what_it_is_called(self, instances: Any) -> None:
        for name, factor in [
            ("step_time", lambda f, w: w.step_time_s),
            ("tokens_per_s", lambda f, w: w.tokens_per_s),
            ("time_to_train", lambda f, w: w.time_to_train_s),
            ("total_cost", lambda f, w: f.total_cost_usd),
        ]:
            instance = instances.instance("storage-8b", f"objective={name}")
            found = evaluate(instance, instances.design("storage-8b", 2))
            assert found.objective == pytest.approx(factor(found, found.workloads["pretrain"]), rel=1e-12)

    def test_cost_of_the_run_and_of_a_token(self, instances: Any) -> None:
        """Purchase and energy at 0.08 USD/kWh; a token pays purchase over five years, and its energy."""
        design = instances.design("storage-8b", 2)
        cost = evaluate(instances.instance("storage-8b"), design)
        train_s = cost.workloads["pretrain"].time_to_train_s
        energy_usd = cost.power_w / 1000 * train_s / 3600 * 0.08
        assert cost.total_cost_usd == pytest.approx(cost.capex_usd + energy_usd, rel=1e-12)
        found = evaluate(instances.instance("storage-8b", "objective=tokens_per_usd"), design)
        year_s = instances.instance("storage-8b").assumptions.depreciation_s / 5
        assert year_s == pytest.approx(365.25 * 86400, rel=1e-3)
        usd_per_s = found.capex_usd / (5 * year_s) + found.power_w / 1000 / 3600 * 0.08
        tokens_per_s = found.workloads["pretrain"].tokens_per_s * found.workloads["pretrain"].goodput
        assert found.objective == pytest.approx(tokens_per_s / usd_per_s, rel=1e-12)
        assert found.minimised == pytest.approx(1 / found.objective, rel=1e-12)

    def test_waiting_for_data(self, instances: Any) -> None:
        """A step of 16 x 8192 tokens of 4 bytes from units of 100 kB/s takes 5.24288 s a unit."""
        case = instances.case("storage-8b", 200, seed=13)
        waited = 0
        for design, found in zip(case.designs, case.evaluations, strict=True):
            figures = found.workloads["pretrain"]
            if design.purchase.storage.product == "lustre-nvme":
                reading_s = 16 * 8192 * 4 / (design.purchase.storage.units * 100e3)
                assert figures.step_time_s >= reading_s * (1 - 1e-12)
                if figures.breakdown_s["waiting for data"]:
                    waited += 1
                    assert figures.step_time_s == pytest.approx(reading_s, rel=1e-12)
            else:
                assert figures.breakdown_s["waiting for data"] == 0
        assert waited > 20

    def test_the_same_again(self, instances: Any, instance_name: str) -> None:
        """By a fresh judge, by one that has judged others, and in another order: to the last digit."""
        case = instances.case(instance_name, 12, seed=14)
        fresh = Judge(instances.instance(instance_name))
        for design, found in reversed(list(zip(case.designs, case.evaluations, strict=True))):
            assert fresh.evaluate(design) == found
        assert evaluate(instances.instance(instance_name), case.designs[0]) == case.evaluations[0]


# ---------------------------------------------------------------------------------------------------------- faults

QM = "quantum2-qm9700"
GOOD = Design(
    "pretrain",
    Plan(tp=2, cp=1, ep=1, pp=2, dp=4, virtual_stages=1, micro_batch=1, recompute="selective", zero=1),
    Placement(tp=Layout(2, 1, 1), cp=ONE, pp=Layout(1, 2, 1), dp=Layout(4, 1, 1)),
    Purchase("hgx-h100", 2, Network("fat-tree", 1, QM, 1, "cx7-400g"), StoragePurchase("weka-pod8", 1), 3600.0),
)


def with_plan(**changes: Any) -> Design:
    return replace(GOOD, plan=replace(GOOD.plan, **changes))


def with_purchase(**changes: Any) -> Design:
    return replace(GOOD, purchase=replace(GOOD.purchase, **changes))


def with_network(**changes: Any) -> Design:
    return with_purchase(network=replace(GOOD.purchase.network, **changes))


def with_layout(**changes: Any) -> Design:
    return replace(GOOD, placement=replace(GOOD.placement, **changes))


@pytest.fixture(scope="module")
def good(instances: Any) -> Instance:
    found: Instance = instances.instance("storage-8b")
    return found


def judged(instance: Instance, design: Design) -> Evaluation:
    return evaluate(instance, design)


class TestFaults:
    def test_none_where_there_is_none(self, good: Instance) -> None:
        assert judged(good, GOOD).violations == ()

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"tp": 3}, "attention heads"),
            ({"tp": 16}, "key and value heads"),
            ({"pp": 29}, "layer split"),
            ({"dp": 5}, "global batch"),
            ({"micro_batch": 3}, "global batch"),
            ({"pp": 1, "virtual_stages": 2}, "interleaving"),
            ({"virtual_stages": 13}, "layer split"),
            ({"dp": 16, "virtual_stages": 2}, "interleaved groups"),
            ({"zero": 2}, "sharding with a pipeline"),
            ({"ep": 2}, "experts"),
            ({"cp": 3}, "sequence length"),
        ],
    )
    def test_illegal_plans(self, good: Instance, changes: dict[str, Any], rule: str) -> None:
        found = judged(good, with_plan(**changes))
        assert any(fault.startswith(f"{rule}: ") for fault in found.violations), found.violations
        assert found.workloads == {}
        assert found.minimised == float("inf")
        assert not found.feasible

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"tp": 0}, "tp: 0 is not a whole number of at least 1"),
            ({"dp": 2.0}, "dp: 2.0 is not a whole number"),
            ({"zero": -1}, "zero: -1 is not a whole number of at least 0"),
            ({"zero": 4, "pp": 1}, "zero: stage 4 does not exist"),
            ({"recompute": "some"}, "recompute: 'some' is none of none, selective, mlp, full, full:N"),
            ({"recompute": "full:0"}, "recompute: 'full:0' is none of"),
            ({"recompute": "full:2\n"}, "recompute: 'full:2\\n' is none of"),
            ({"recompute": 2}, "recompute: 2 is none of"),
            ({"schedule": "gpipe"}, "schedule: 'gpipe' is none of 1f1b, zb-h1"),
            ({"shard_within": None}, "shard_within: None is none of group, domain"),
            ({"context_exchange": "rings"}, "context_exchange: 'rings' is none of ring, all-gather"),
            ({"expert_tp": 0}, "expert_tp: 0 is not a whole number of at least 1"),
        ],
    )
    def test_values_that_are_none(self, good: Instance, changes: dict[str, Any], said: str) -> None:
        assert any(said in fault for fault in judged(good, with_plan(**changes)).violations)

    def test_another_workload(self, good: Instance) -> None:
        found = judged(good, replace(GOOD, workload="other"))
        assert found.violations == ("workload: 'other' is not the 'pretrain' of the instance",)

    def test_framework_rules(self, instances: Any) -> None:
        deepspeed = instances.instance("deepspeed-13b")
        design = instances.design("deepspeed-13b", 1)
        for changes, rule in [({"cp": 2}, "context parallelism"), ({"virtual_stages": 2, "pp": 2}, "interleaving")]:
            found = evaluate(deepspeed, replace(design, plan=replace(design.plan, **changes)))
            assert any(fault.startswith(f"{rule}: ") for fault in found.violations), found.violations

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"tp": ONE}, "the layout of tp gives 1 ranks, its degree is 2"),
            ({"cp": Layout(1, 1, 2)}, "the layout of cp gives 2 ranks, its degree is 1"),
            ({"dp": Layout(8, 1, 1)}, "the layout of dp gives 8 ranks, its degree is 4"),
            ({"dp": Layout(8, 1, 1)}, "16 ranks in a domain of 8 GPUs (hgx-h100)"),
            ({"dp": Layout(1, 4, 1)}, "it fills 8 x 1 = 8 servers, 2 are taken"),
            ({"pp": Layout(2, 1, 1)}, "it fills 1 x 1 = 1 servers, 2 are taken"),
        ],
    )
    def test_layouts(self, good: Instance, changes: dict[str, Layout], said: str) -> None:
        assert any(said in fault for fault in judged(good, with_layout(**changes)).violations)

    def test_more_in_a_leaf_group_than_its_switch_has_ports(self, instances: Any) -> None:
        """A fat-tree leaf of 8 ports at 3:1 has 6 down and 2 up: not one server of 8 NICs; rail-only takes 6."""
        leaves = instances.instance("leaves-8b")
        found = instances.case("leaves-8b", 300, seed=15)
        tried = 0
        for design in found.designs:
            placement = design.placement
            if placement.ranks_in("pod") == 1:
                continue
            inside = Placement(
                **{d: Layout(x.domain, x.leaf * x.pod, 1) for d in ("tp", "cp", "pp", "dp")
                   for x in [placement.layout(d)]}
            )  # fmt: skip
            tried += 1
            (fault,) = evaluate(leaves, replace(design, placement=inside)).violations
            assert f"{design.purchase.servers} servers in a leaf group of {placement.ranks_in('leaf')}" in fault
        assert tried > 50

    def test_a_network_that_does_not_reach(self, good: Instance) -> None:
        none = Network("none", 0, "", 1, "")
        found = judged(good, with_purchase(network=none))
        assert "network: none cannot join 2 servers" in found.violations

    def test_more_servers_than_are_owned(self, instances: Any) -> None:
        """Twice the design of four servers on eight, where four are owned with a network for four."""
        owned = instances.instance("owned-70b")
        design = next(
            d
            for d in instances.case("owned-70b", 200, seed=16).designs
            if d.purchase.servers == 4 and d.plan.dp <= 4 and d.plan.virtual_stages == 1
        )
        layout = design.placement.dp
        twice = replace(
            design,
            plan=replace(design.plan, dp=2 * design.plan.dp),
            placement=replace(design.placement, dp=layout._replace(leaf=2 * layout.leaf)),
            purchase=replace(design.purchase, servers=8),
        )
        assert evaluate(owned, twice).violations == (
            "network: rail-optimized is owned for 4 servers and not offered, 8 are taken",
            "servers: 8 x hgx-h100, but 4 are owned and none offered",
        )

    def test_a_plan_that_the_instance_does_not_state(self, instances: Any) -> None:
        found = judged(instances.instance("storage-8b", "plan.recompute=[none, full]", "plan.tp=2"), GOOD)
        assert found.violations == ("plan.recompute: selective is not what the instance states (none, full)",)
        assert found.workloads

    @pytest.mark.parametrize(
        ("override", "name"),
        [
            ("limits.capex=$700k", "capex"),
            ("limits.power=26kW", "power"),
            ("limits.deadline=1h", "deadline"),
        ],
    )
    def test_limits(self, instances: Any, override: str, name: str) -> None:
        found = judged(instances.instance("storage-8b", override), GOOD)
        (check,) = [check for check in found.limits if not check.kept]
        assert check.name == name
        assert check.value > check.most
        assert check.slack < 0
        (fault,) = found.violations
        assert fault.startswith(f"{name}: ")

    def test_a_limit_that_is_just_kept(self, instances: Any) -> None:
        """At the very value of the design the limit is kept, a millionth below it is not."""
        design, loose = GOOD, judged(instances.instance("storage-8b"), GOOD)
        values = {check.name: check.value for check in loose.limits}
        for name, field in [("capex", "capex_usd"), ("power", "power_w"), ("deadline", "deadline_s")]:
            base = instances.instance("storage-8b")
            for factor, broken in [(1.0, 0), (1 - 1e-6, 1)]:
                limits = base.limits.model_copy(update={field: values[name] * factor})
                found = Judge(base.model_copy(update={"limits": limits})).evaluate(design)
                assert len([f for f in found.violations if f.startswith(name)]) == broken

    def test_gpus(self, instances: Any) -> None:
        found = judged(instances.instance("storage-8b", "limits.gpus=8"), GOOD)
        assert [check.kept for check in found.limits if check.name == "gpus"] == [False]
        assert found.violations == ("gpus: 16 GPUs is over the limit of 8 GPUs",)

    def test_a_limit_is_told_beside_an_illegal_plan(self, instances: Any) -> None:
        found = judged(instances.instance("storage-8b", "limits.capex=$700k"), with_plan(tp=3))
        assert {fault.partition(":")[0] for fault in found.violations} >= {"attention heads", "capex"}

    def test_memory(self, instances: Any) -> None:
        """A 70B unsharded but for tp 2 takes far more than 80 GB."""
        owned = instances.instance("owned-70b")
        network = next(d for d in instances.case("owned-70b", 50, seed=16).designs if d.purchase.servers == 4)
        plan = Plan(tp=8, cp=1, ep=1, pp=1, dp=4, virtual_stages=1, micro_batch=1, recompute="none", zero=0)
        design = Design(
            "pretrain",
            plan,
            Placement(tp=Layout(8, 1, 1), cp=ONE, pp=ONE, dp=Layout(1, 4, 1)),
            network.purchase,
        )
        found = evaluate(owned, design)
        (fault,) = found.violations
        memory = found.workloads["pretrain"].memory
        assert fault.startswith("memory: stage 0 needs ")
        assert fault.endswith("h100-sxm-80 has 85.50 GB")
        assert memory.verdict == "exceeds"
        assert memory.worst_rank_bytes > 18 * 70e9 / 8

    def test_checkpoints_that_do_not_fit(self, instances: Any) -> None:
        """Kept: 3 x 8.03e9 x 14 bytes = 337 GB, of a unit with 300 GB."""
        small = "offers.storage[0].product={preset: weka-pod8, capacity: 300GB}"
        found = judged(instances.instance("storage-8b", small), GOOD)
        assert found.violations == ("storage: the checkpoints that are kept do not fit",)

    def test_no_headway(self, instances: Any) -> None:
        """16 GPUs of 0.5 GPU-hours fail every 112 s on average; an hour between checkpoints is never worked off."""
        found = judged(instances.instance("storage-8b", "assumptions.failure_gpu_hours=0.5"), GOOD)
        assert any(fault.startswith("goodput: the run makes no headway") for fault in found.violations)
        assert found.workloads["pretrain"].goodput == 0.0
        assert not found.feasible

    @pytest.mark.parametrize(
        ("design", "what"),
        [
            (with_purchase(server="hgx-h200"), "server hgx-h200"),
            (with_network(switch="spectrum4-sn5600"), "network"),
            (with_network(oversubscription=7), "network"),
            (with_purchase(storage=StoragePurchase("weka-pod8", 3)), "storage"),
        ],
    )
    def test_hardware_that_the_instance_does_not_have(self, good: Instance, design: Design, what: str) -> None:
        with pytest.raises(SpecError, match=f"a design with {what}"):
            evaluate(good, design)

    def test_checkpoints_need_an_interval(self, good: Instance) -> None:
        """None between checkpoints is no run, whatever a division would say."""
        for interval_s in (0.0, -5.0, float("nan"), float("inf")):
            found = judged(good, with_purchase(checkpoint_interval_s=interval_s))
            assert any(fault.startswith("checkpoints: ") for fault in found.violations), interval_s
