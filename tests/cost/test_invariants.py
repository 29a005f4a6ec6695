"""What holds whatever the design: better hardware is never worse, money never helps by rising, labels and units are
only words. Checked on the exact model, for random legal designs of several instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import architecture
from codesign.cost.assemble import CostModel
from codesign.design import Design
from codesign.design.placement import RankMap, rank_map
from codesign.exact import Judge
from codesign.exact.step import spans, step
from codesign.solve.exhaustive import enumerate_all
from codesign.solve.sample import random_designs
from codesign.spec.instance import Instance, parse

Change = Callable[[dict[str, Any], float], None]

# ---------------------------------------------------------------------------------------------- better hardware


def gpus(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [server["gpu"] for server in servers(document)]


def servers(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [*document["offers"]["servers"], *(item["server"] for item in document["inventory"])]


def switches(document: dict[str, Any]) -> list[dict[str, Any]]:
    owned = [item["switch"] for item in document["inventory"] if item["switch"]]
    return [*document["offers"]["fabrics"]["switches"], *owned]


def products(document: dict[str, Any]) -> list[dict[str, Any]]:
    owned = [item["storage"] for item in document["inventory"] if item["storage"]]
    return [*(offer["product"] for offer in document["offers"]["storage"]), *owned]


def peak(document: dict[str, Any], factor: float) -> None:
    for gpu in gpus(document):
        gpu["peak_flops"] = {precision: value * factor for precision, value in gpu["peak_flops"].items()}


def of_gpus(field: str) -> Change:
    def change(document: dict[str, Any], factor: float) -> None:
        for gpu in gpus(document):
            gpu[field] *= factor

    return change


HOST = ("collective_launch_s", "host_layer_s", "host_mixture_s", "step_overhead_s")


def host(document: dict[str, Any], factor: float) -> None:
    for name in HOST:
        document["assumptions"][name] /= factor


def launch(document: dict[str, Any], factor: float) -> None:
    for gpu in gpus(document):
        gpu["efficiency"]["launch_s"] /= factor


def domain_latency(document: dict[str, Any], factor: float) -> None:
    of_gpus("domain_latency_s")(document, 1 / factor)


def network(document: dict[str, Any], factor: float) -> None:
    """NICs, links and switch ports together: a port takes the speed of the NIC."""
    for server in servers(document):
        server["nic_bandwidth_bytes_per_s"] *= factor
    owned = [item["nic"] for item in document["inventory"] if item["nic"]]
    for part in [*document["offers"]["nics"], *document["offers"]["fabrics"]["links"], *owned]:
        part["bandwidth_bytes_per_s"] *= factor
    for switch in switches(document):
        switch["ports"] = {
            f"{float(speed.removesuffix('Gb/s')) * factor:g}Gb/s": number for speed, number in switch["ports"].items()
        }


def network_latency(document: dict[str, Any], factor: float) -> None:
    document["assumptions"]["network_latency_s"] /= factor
    for switch in switches(document):
        switch["latency_s"] /= factor


def storage(document: dict[str, Any], factor: float) -> None:
    for product in products(document):
        product["read_bytes_per_s"] *= factor
        product["write_bytes_per_s"] *= factor
    for server in servers(document):
        server["storage_bandwidth_bytes_per_s"] *= factor
        server["host_copy_bandwidth_bytes_per_s"] *= factor


def fewer(field: str) -> Change:
    def change(document: dict[str, Any], factor: float) -> None:
        document["assumptions"][field] /= factor

    return change


def ceilings(document: dict[str, Any], factor: float) -> None:
    """Half of the way, or more, from where kernels are to the peak."""
    for gpu in gpus(document):
        for name in ("matmul_ceiling", "attention_ceiling", "memory_ceiling"):
            gpu["efficiency"][name] = 1.0 - (1.0 - gpu["efficiency"][name]) / factor


def overlap(document: dict[str, Any], factor: float) -> None:
    document["assumptions"]["overlap_data_parallel"] = (
        1.0 - (1.0 - document["assumptions"]["overlap_data_parallel"]) / factor
    )


SPEEDS: dict[str, Change] = {
    "peak": peak,
    "memory bandwidth": of_gpus("memory_bandwidth_bytes_per_s"),
    "domain bandwidth": of_gpus("domain_bandwidth_bytes_per_s"),
    "network bandwidth": network,
    "domain latency": domain_latency,
    "network latency": network_latency,
    "launch": launch,
    "host and start of collectives": host,
    "storage bandwidth": storage,
}
"""Every bandwidth, peak and latency."""
BETTER: dict[str, Change] = {
    **SPEEDS,
    "bytes of a weight": fewer("weight_bytes"),
    "bytes of a gradient": fewer("gradient_bytes"),
    "bytes of a gradient on the network": fewer("reduced_gradient_bytes"),
    "bytes of the optimizer": fewer("optimizer_bytes"),
    "bytes of a token": fewer("bytes_per_token"),
    "bytes of a checkpoint": fewer("checkpoint_bytes_per_parameter"),
    "restart": fewer("restart_s"),
    "kernels": ceilings,
    "overlap": overlap,
}
STEP = {*BETTER} - {"bytes of a checkpoint", "restart"}


def changed(instance: Instance, factor: float, *changes: Change) -> Instance:
    document = instance.to_document()
    for change in changes:
        change(document, factor)
    return Instance.from_document(document)


def names(instances: Any) -> st.SearchStrategy[str]:
    return st.sampled_from(instances.names)


SEEDS = st.integers(0, 2**32 - 1)
FACTORS = st.sampled_from([2.0, 3.0, 4.0, 8.0])


@pytest.mark.parametrize("what", BETTER)
@settings(max_examples=25)
@given(data=st.data(), seed=SEEDS, factor=FACTORS)
def test_better_is_never_slower(instances: Any, what: str, data: st.DataObject, seed: int, factor: float) -> None:
    name = data.draw(names(instances))
    design = instances.design(name, seed)
    before = instances.judge(name).evaluate(design).workloads["pretrain"]
    after = Judge(changed(instances.instance(name), factor, BETTER[what])).evaluate(design).workloads["pretrain"]
    assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
    assert after.goodput >= before.goodput * (1 - 1e-12)
    if before.time_to_train_s is not None:
        assert after.time_to_train_s <= before.time_to_train_s * (1 + 1e-12)


@pytest.mark.parametrize("what", sorted(STEP))
def test_better_is_faster_somewhere(instances: Any, what: str) -> None:
    """None of these figures is without effect: for some design the step is shorter, to a thousandth and more."""
    best = 1.0
    for name in ("owned-70b", "storage-8b", "torchtitan-7b", "leaves-8b"):
        judge = Judge(changed(instances.instance(name), 8.0, BETTER[what]))
        for seed in range(8):
            design = instances.design(name, seed)
            before, after = (
                each.evaluate(design).workloads["pretrain"].step_time_s for each in (instances.judge(name), judge)
            )
            best = min(best, after / before)
    assert best < 0.999


@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS)
def test_twice_as_fast_everywhere_is_half_the_time(instances: Any, data: st.DataObject, seed: int) -> None:
    name = data.draw(names(instances))
    design = instances.design(name, seed)
    before = instances.judge(name).evaluate(design).workloads["pretrain"]
    doubled = changed(instances.instance(name), 2.0, *SPEEDS.values())
    after = Judge(doubled).evaluate(design).workloads["pretrain"]
    assert 2 * after.step_time_s == pytest.approx(before.step_time_s, rel=1e-12)
    assert after.bubble_fraction == pytest.approx(before.bubble_fraction, rel=1e-9, abs=1e-12)
    for part, seconds in before.breakdown_s.items():
        assert 2 * after.breakdown_s[part] == pytest.approx(seconds, rel=1e-9, abs=1e-9 * before.step_time_s), part
    if before.checkpoint_save_s is not None and before.checkpoint_load_s is not None:
        assert 2 * after.checkpoint_save_s == pytest.approx(before.checkpoint_save_s, rel=1e-12)
        assert 2 * after.checkpoint_load_s == pytest.approx(before.checkpoint_load_s, rel=1e-12)
    assert after.memory == before.memory


def test_the_relaxed_model_halves_too(instances: Any, instance_name: str) -> None:
    model = instances.model(instance_name)
    doubled = CostModel(changed(model.instance, 2.0, *SPEEDS.values()))
    columns = random_designs(model, 500, 31).columns
    assert doubled.space.names == model.space.names
    assert [doubled.space.size(name) for name in model.space.names] == [model.space.size(n) for n in model.space.names]
    np.testing.assert_allclose(2 * doubled.value(doubled.step, columns), model.value(model.step, columns), rtol=1e-12)


# ------------------------------------------------------------------------------------------------------- money


def prices(document: dict[str, Any]) -> list[dict[str, Any]]:
    offers = document["offers"]
    return [
        *offers["servers"],
        *offers["nics"],
        *switches(document),
        *offers["fabrics"]["links"],
        *products(document),
    ]


BUYING = ("bought-8b", "storage-8b", "fp8-8b", "torchtitan-7b", "leaves-8b", "grow-8b")


@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS, rise=st.floats(1.0, 5.0))
def test_a_price_rise_never_makes_a_design_cheaper(instances: Any, data: st.DataObject, seed: int, rise: float) -> None:
    """All prices, or one; but not that of a standard NIC, which is taken off where another is fitted."""
    name = data.draw(st.sampled_from(BUYING))
    design = instances.design(name, seed)
    document = instances.instance(name).to_document()
    priced = [part for part in prices(document) if part.get("price_usd")]
    standard = {server["nic_bandwidth_bytes_per_s"] for server in servers(document)}
    loose = [n for n, part in enumerate(priced) if part.get("bandwidth_bytes_per_s") not in standard]
    one = data.draw(st.sampled_from([None, *loose]))
    before = instances.judge(name).evaluate(design)
    for number, part in enumerate(priced):
        if one is None or number == one:
            part["price_usd"] *= rise
    after = Judge(Instance.from_document(document)).evaluate(design)
    assert after.capex_usd >= before.capex_usd * (1 - 1e-12)
    if one is None:
        assert after.capex_usd == pytest.approx(rise * before.capex_usd, rel=1e-12)
    assert after.workloads == before.workloads
    assert after.power_w == before.power_w
    if before.total_cost_usd is not None:
        assert after.total_cost_usd is not None
        assert after.total_cost_usd >= before.total_cost_usd * (1 - 1e-12)


SMALL = """
schema: 1
name: small
workloads:
  - model: llama-3.1-8b
    sequence_length: 4096
    global_batch: 32
    tokens: 10B
    plan: {tp: [2, 4], cp: 1, micro_batch: 1, zero: 1, pp: [1, 2], virtual_stages: 1, recompute: none}
offers:
  servers: [hgx-h100]
  nics: [cx7-400g, cx6-200g]
  fabrics: {kinds: [fat-tree], oversubscription: 1, switches: [quantum2-qm9700]}
  storage: [{product: weka-pod8, units: 1}]
limits: {deadline: 20d, capex: $3M, gpus: 32}
objective: %s
"""
LEAST_USD, MOST_USD = 500_000, 2_000_000


@pytest.mark.parametrize("objective", ["total_cost", "tokens_per_usd"])
@settings(max_examples=6)
@given(rises=st.tuples(*[st.floats(1.0, 3.0)] * 3))
def test_a_price_rise_never_makes_the_optimum_cheaper(objective: str, rises: tuple[float, ...]) -> None:
    instance = parse(SMALL % objective)
    document = instance.to_document()
    offers = document["offers"]
    parts = [*offers["servers"], *offers["fabrics"]["switches"], offers["storage"][0]["product"]]
    for part, rise in zip(parts, rises, strict=True):
        part["price_usd"] *= rise
    # what the budget now forbids is no cheaper design
    before, after = enumerate_all(instance), enumerate_all(Instance.from_document(document))
    assert before.evaluation is not None
    assert after.evaluation is None or after.evaluation.minimised >= before.evaluation.minimised * (1 - 1e-12)


@settings(max_examples=8)
@given(budgets=st.tuples(st.integers(LEAST_USD, MOST_USD), st.integers(LEAST_USD, MOST_USD)))
def test_a_larger_budget_never_makes_the_optimum_worse(budgets: tuple[int, int]) -> None:
    found = [
        enumerate_all(parse(SMALL % "time_to_train", overrides=[f"limits.capex={budget}"])).evaluation
        for budget in sorted(budgets)
    ]
    poor, rich = found
    assert poor is None or (rich is not None and rich.minimised <= poor.minimised)


@settings(max_examples=40)
@given(data=st.data(), seed=SEEDS, factor=st.floats(1.01, 10.0))
def test_more_failures_are_never_better(instances: Any, data: st.DataObject, seed: int, factor: float) -> None:
    name = data.draw(st.sampled_from(["storage-8b", "fp8-8b", "grow-8b"]))
    design = instances.design(name, seed)
    before = instances.judge(name).evaluate(design).workloads["pretrain"]
    worse = changed(instances.instance(name), factor, fewer("failure_gpu_hours"))
    after = Judge(worse).evaluate(design).workloads["pretrain"]
    assert after.goodput < before.goodput
    assert after.step_time_s == before.step_time_s


# ------------------------------------------------------------------------------------------------ memory, labels


@settings(max_examples=150)
@given(data=st.data(), seed=SEEDS)
def test_states_are_never_below_an_equal_share(instances: Any, data: st.DataObject, seed: int) -> None:
    """2 + 4 + 12 bytes of each parameter are on some GPU: summed over all ranks, whatever is sharded over what."""
    name = data.draw(names(instances))
    design, judge = instances.design(name, seed), instances.judge(name)
    plan, constants = design.plan, judge.instance.assumptions
    layouts = {f"{d}_layout": design.placement.layout(d).domain for d in ("dp", "cp")}
    by_stage = judge.memory.by_stage(vars(plan) | layouts)
    kinds = ("weights", "gradients", "optimizer")[: 1 if judge.workload.tuning == "lora" else 3]
    of_experts = tuple(f"expert {kind}" for kind in kinds) if judge.workload.model.experts else ()
    states = sum(by_stage[part] for part in (*kinds, *of_experts)) / (1 + constants.memory_fragmentation)
    everywhere = float(states.sum()) * plan.world / plan.pp
    each = sum(getattr(constants, f"{kind.removesuffix('s')}_bytes") for kind in kinds)
    assert everywhere >= each * architecture.total_parameters(judge.workload.model) * (1 - 1e-12)
    memory = judge.evaluate(design).workloads["pretrain"].memory
    assert memory.worst_rank_bytes * plan.world >= everywhere


@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS)
def test_labels_of_equal_gpus_change_nothing(instances: Any, data: st.DataObject, seed: int) -> None:
    """GPUs of a server, servers of a leaf group and leaf groups numbered in another order."""
    name = data.draw(names(instances))
    design, judge = instances.design(name, seed), instances.judge(name)
    option, net, _ = judge.market.find(design.purchase)
    ranks = rank_map(design.plan, design.placement)
    random = np.random.default_rng(seed)
    leaves, servers_each = int(ranks.leaf_group.max()) + 1, design.placement.ranks_in("leaf")
    new_leaf = random.permutation(leaves)
    inside = np.stack([random.permutation(servers_each) for _ in range(leaves)])
    leaf = new_leaf[ranks.leaf_group]
    relabelled = RankMap(
        coordinates=ranks.coordinates,
        server=leaf * servers_each + inside[ranks.leaf_group, ranks.server % servers_each],
        gpu=random.permutation(int(ranks.gpu.max()) + 1)[ranks.gpu],
        leaf_group=leaf,
    )
    arguments = (option.server.gpu, judge.market.rates(option, net), judge.instance.assumptions, judge.memory)
    assert step(judge.workload, design.plan, spans(design.plan, relabelled), *arguments) == step(
        judge.workload, design.plan, spans(design.plan, ranks), *arguments
    )


@settings(max_examples=60)
@given(data=st.data(), seed=SEEDS)
def test_a_group_nearer_together_is_never_slower(instances: Any, data: st.DataObject, seed: int) -> None:
    """Were all ranks in one domain, whose tier is the fastest of these clusters, the step would take no longer."""
    name = data.draw(st.sampled_from(["bought-8b", "leaves-8b", "owned-70b", "torchtitan-7b"]))
    design, judge = instances.design(name, seed), instances.judge(name)
    plan, placement = design.plan, design.placement
    if placement.ranks_in("leaf") * placement.ranks_in("pod") == 1:
        return
    option, net, _ = judge.market.find(design.purchase)
    far = rank_map(plan, placement)
    near = replace(far, server=np.zeros_like(far.server), leaf_group=np.zeros_like(far.leaf_group))
    arguments = (option.server.gpu, judge.market.rates(option, net), judge.instance.assumptions, judge.memory)
    one, other = (step(judge.workload, plan, spans(plan, each), *arguments).total_s for each in (near, far))
    assert one <= other * (1 + 1e-12)


# -------------------------------------------------------------------------------------------------------- units


def evaluated(text: str, design: Design) -> Any:
    return Judge(parse(text)).evaluate(design)


def test_bytes_and_bits_agree(instances: Any) -> None:
    """The same cluster in bits, bytes, other prefixes, kilowatts and hours: one instance, one digest, one answer."""
    plain = """
schema: 1
name: units
workloads: [{model: llama-3.1-8b, sequence_length: 4096, global_batch: 32, tokens: 10000000000}]
offers:
  servers:
    - {preset: hgx-h100, nic_bandwidth: 400Gb/s, storage_bandwidth: 640Gb/s, power: 10.2kW, price: $310k}
  nics: [{preset: cx7-400g, bandwidth: 400Gb/s}]
  fabrics:
    kinds: [fat-tree]
    oversubscription: 1
    switches: [{preset: quantum2-qm9700, ports: {400Gb/s: 64}}]
  storage: [{product: {preset: weka-pod8, capacity: 1PB, read: 320Gb/s}, units: 1}]
limits: {capex: $3M, power: 100kW, deadline: 30d}
assumptions: {network_latency: 4us, restart: 7min}
objective: time_to_train
"""
    other = """
schema: 1
name: units
workloads: [{model: llama-3.1-8b, sequence_length: 4096, global_batch: 32, tokens: 10B}]
offers:
  servers:
    - {preset: hgx-h100, nic_bandwidth: 50GB/s, storage_bandwidth: 80GB/s, power: 10200W, price: $0.31M}
  nics: [{preset: cx7-400g, bandwidth: 50GB/s}]
  fabrics:
    kinds: [fat-tree]
    oversubscription: [1]
    switches: [{preset: quantum2-qm9700, ports: {400Gb/s: 64}}]
  storage: [{product: {preset: weka-pod8, capacity: 1000TB, read: 40GB/s}, units: [1]}]
limits: {capex: $3000k, power: 0.1MW, deadline: 720h}
assumptions: {network_latency: 0.004ms, restart: 420s}
objective: time_to_train
"""
    one, two = parse(plain), parse(other)
    assert one.to_document() == two.to_document()
    assert one.digest() == two.digest()
    model = CostModel(one)
    design = model.decode(random_designs(model, 1, 5).columns)
    assert evaluated(plain, design) == evaluated(other, design)
    assert one.offers.servers[0].nic_bandwidth_bytes_per_s == 50e9
    assert one.offers.storage[0].product.read_bytes_per_s == 40e9
