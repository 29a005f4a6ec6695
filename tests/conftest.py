"""Small instances that several tests share, and random legal designs of them.

`texts` has the instances as a user would write them; `models` and `judges` the cost model and the exact model of each,
built once; `cases` draws random designs and judges them, once for all tests that ask for the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import pytest
from hypothesis import settings

from codesign.cost.assemble import CostModel
from codesign.design import Design
from codesign.design.evaluation import Evaluation
from codesign.exact.evaluate import Judge
from codesign.expr import Relation
from codesign.solve.sample import random_designs
from codesign.spec.instance import Instance, parse

# How long an example takes says nothing about the code: machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

GPT_30 = """{name: gpt-30-layers, layers: 30, hidden: 6144, heads: 48, ffn_hidden: 24576, gated: false,
            vocabulary: 51200, tied_embeddings: true}"""

LATENT = """{name: latent, layers: 12, hidden: 2048, heads: 16, kv_heads: 16, head_size: 192, ffn_hidden: 8192,
            gated: true, vocabulary: 64000, tied_embeddings: false, experts: 32, top_k: 4, expert_ffn_hidden: 1024,
            shared_experts: 1, dense_layers: 2,
            multi_latent: {q_rank: 768, kv_rank: 256, nope_size: 128, rope_size: 64, value_size: 128}}"""

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        # one owned cluster: a pipeline against sharding
        "owned-70b": """
schema: 1
name: owned-70b
workloads: [{model: llama-3.1-70b, sequence_length: 4096, global_batch: 32, tokens: 100B}]
offers: none
inventory: [{server: hgx-h100, count: 4, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
""",
        # one to four servers are bought with their network
        "bought-8b": """
schema: 1
name: bought-8b
workloads: [{model: llama-3.1-8b, sequence_length: 4096, global_batch: 32, tokens: 10B}]
offers:
  servers: [hgx-h100]
  nics: [cx7-400g, cx6-200g]
  fabrics: {kinds: [rail-optimized, fat-tree, rail-only], oversubscription: [1, 2], switches: [quantum2-qm9700]}
  storage: []
limits: {capex: $3M, power: 100kW, deadline: 30d, gpus: 32}
objective: time_to_train
""",
        # storage so slow that reading the data, saving and failures all matter
        "storage-8b": """
schema: 1
name: storage-8b
workloads: [{model: llama-3.1-8b, sequence_length: 8192, global_batch: 16, tokens: 10B}]
offers:
  servers: [hgx-h100, dgx-b200]
  fabrics: {kinds: [fat-tree], oversubscription: [1, 2], switches: [quantum2-qm9700]}
  storage:
    - {product: weka-pod8, units: [1, 2]}
    - {product: {preset: lustre-nvme, read: 100kB/s, write: 200MB/s}, units: [1, 4]}
limits: {capex: $4M, power: 90kW, deadline: 40d, gpus: 64}
objective: total_cost
assumptions: {failure_gpu_hours: 700, bytes_per_token: 4, installation_fraction: 0.1}
""",
        # dollars, FP8, two types of server
        "fp8-8b": """
schema: 1
name: fp8-8b
workloads: [{model: llama-3.1-8b, sequence_length: 8192, global_batch: 32, tokens: 100B, precision: fp8}]
offers:
  servers: [hgx-h100, dgx-b200]
  fabrics: {kinds: [fat-tree], oversubscription: 1, switches: [spectrum4-sn5600]}
  storage: [{product: weka-pod8, units: 1}]
limits: {gpus: 32}
objective: tokens_per_usd
""",
        # context parallelism over two servers
        "long-8b": """
schema: 1
name: long-8b
workloads: [{model: llama-3.1-8b, sequence_length: 65536, global_batch: 8}]
offers: none
inventory: [{server: hgx-h200, count: 2, fabric: fat-tree, switch: spectrum4-sn5600}]
objective: tokens_per_s
""",
        # interleaving; 30 layers on 2, 3, 5 chunks are even, on 4, 8, 16 the ends hold one less
        "interleaved-gpt": f"""
schema: 1
name: interleaved-gpt
workloads:
  - model: {GPT_30}
    sequence_length: 2048
    global_batch: 64
    plan: {{pp: [2, 3, 4, 5, 8, 16], virtual_stages: [1, 2, 3, 4], micro_batch: [1, 2]}}
offers: none
inventory: [{{server: dgx-a100, count: 8, fabric: rail-optimized, switch: quantum2-qm9700}}]
objective: step_time
""",
        "deepspeed-13b": """
schema: 1
name: deepspeed-13b
workloads: [{model: llama-2-13b, sequence_length: 4096, global_batch: 128, framework: deepspeed}]
offers: none
inventory: [{server: dgx-a100, count: 2, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
""",
        # everything sharded, weights gathered for every micro-batch
        "torchtitan-7b": """
schema: 1
name: torchtitan-7b
workloads:
  - model: llama-2-7b
    sequence_length: 16384
    global_batch: 48
    tokens: 5B
    framework: torchtitan
    plan: {zero: [2, 3]}
offers:
  servers: [hgx-h100]
  fabrics: {kinds: [rail-only], oversubscription: 1, switches: [tomahawk5-64x800]}
  storage: []
limits: {capex: $1.6M}
objective: time_to_train
""",
        # switches of few ports: several leaf groups and two or three tiers, little overlap, dear latency
        "leaves-8b": """
schema: 1
name: leaves-8b
workloads: [{model: llama-3.1-8b, sequence_length: 8192, global_batch: 64, plan: {micro_batch: [1, 2]}}]
offers:
  servers: []
  fabrics:
    kinds: [rail-optimized, fat-tree, rail-only]
    oversubscription: [1, 3]
    switches: [{preset: quantum2-qm9700, ports: {400Gb/s: 8, 200Gb/s: 16}}]
  nics: [cx7-400g]
  storage: []
inventory: [{server: hgx-h100, count: 16}]
objective: step_time
assumptions: {overlap_data_parallel: 0.3, network_latency_s: 30us}
""",
        # two servers are owned with their network and storage; more of the same can be bought, network and all
        "grow-8b": """
schema: 1
name: grow-8b
workloads: [{model: llama-3.1-8b, sequence_length: 4096, global_batch: 32, tokens: 10B}]
offers:
  servers: [hgx-h100]
  nics: [cx7-400g]
  fabrics: {kinds: [fat-tree], oversubscription: 1, switches: [quantum2-qm9700]}
  storage: [{product: weka-pod8, units: [1, 2]}]
inventory:
  - server: hgx-h100
    count: 2
    nic: cx7-400g
    fabric: fat-tree
    switch: quantum2-qm9700
    storage: weka-pod8
  - {server: hgx-h200, count: 2, nic: cx7-400g, fabric: fat-tree, switch: quantum2-qm9700, storage: weka-pod8}
limits: {gpus: 32}
objective: time_to_train
""",
        # experts over tensor, context and data parallel ranks, across servers; some hotter than others
        "mixtral": """
schema: 1
name: mixtral
workloads: [{model: mixtral-8x7b, sequence_length: 16384, global_batch: 32, plan: {cp: [1, 2], micro_batch: [1, 2]}}]
offers: none
inventory: [{server: hgx-h100, count: 4, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
assumptions: {expert_imbalance: 1.3, overlap_expert_parallel: 0.6}
""",
        # latent attention, dense layers in front, shared experts, a pipeline whose stages hold layers of both kinds
        "latent": f"""
schema: 1
name: latent
workloads:
  - model: {LATENT}
    sequence_length: 4096
    global_batch: 64
    precision: fp8
    plan: {{pp: [1, 2, 3, 4, 7], virtual_stages: [1, 2, 3], micro_batch: 1, tp: [1, 2]}}
offers: none
inventory: [{{server: hgx-h200, count: 4, fabric: fat-tree, switch: spectrum4-sn5600}}]
objective: tokens_per_s
assumptions: {{host_mixture: 900us, step_overhead: 20ms}}
""",
        # software of 2021: scores in memory, every rank does all that is done token by token, a slow host
        "unfused-13b": """
schema: 1
name: unfused-13b
workloads:
  - model: llama-2-13b
    sequence_length: 2048
    global_batch: 64
    attention: unfused
    sequence_parallel: false
    framework: deepspeed
offers: none
inventory: [{server: dgx-a100, count: 2, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
assumptions:
  {host_layer: 2ms, host_skew: 0.3, kernel_share: 0.8, launch_share: 0.5, sharding_efficiency: 0.3,
   attention_share: 0.7}
""",
        # adapters beside frozen weights
        "lora-70b": """
schema: 1
name: lora-70b
workloads: [{model: llama-2-70b, sequence_length: 4096, global_batch: 32, tuning: lora, plan: {micro_batch: [1, 2]}}]
offers: none
inventory: [{server: hgx-h100, count: 2, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
""",
        # part of the layers run again, states sharded within the domain, contexts gathered
        "blocks-8b": """
schema: 1
name: blocks-8b
workloads:
  - model: llama-3.1-8b
    sequence_length: 16384
    global_batch: 32
    plan:
      recompute: [none, mlp, selective, full, "full:1", "full:3"]
      shard_within: [group, domain]
      context_exchange: [ring, all-gather]
      virtual_stages: [1, 2, 4]
      micro_batch: [1, 2]
offers: none
inventory: [{server: hgx-h100, count: 4, fabric: rail-optimized, switch: quantum2-qm9700}]
objective: step_time
assumptions: {overlap_data_parallel: 0.4, sharp: true}
""",
        # the gradients of weights put off
        "zero-bubble-7b": """
schema: 1
name: zero-bubble-7b
workloads:
  - model: llama-2-7b
    sequence_length: 4096
    global_batch: 64
    framework: torchtitan
    plan: {pp: [1, 2, 4, 8, 16, 17], micro_batch: [1, 2]}
offers: none
inventory: [{server: hgx-h100, count: 4, fabric: fat-tree, switch: quantum2-qm9700}]
objective: step_time
""",
        # experts cut by tensor parallelism of their own; layers of both kinds of which the first of a stage run again
        "expert-tensor": f"""
schema: 1
name: expert-tensor
workloads:
  - model: {LATENT}
    sequence_length: 4096
    global_batch: 64
    plan: {{tp: [1, 2, 4], expert_tp: [1, 2, 4], pp: [1, 2, 4, 7], recompute: [none, mlp, "full:1", "full:2"]}}
offers: none
inventory: [{{server: hgx-h100, count: 4, fabric: rail-optimized, switch: quantum2-qm9700}}]
objective: step_time
""",
        # a rack as one domain, part of which may stand idle
        "rack-8b": """
schema: 1
name: rack-8b
workloads: [{model: llama-3.1-8b, sequence_length: 8192, global_batch: 64}]
offers: none
inventory: [{server: gb200-nvl72, count: 1}]
objective: tokens_per_s
""",
    }
)


@dataclass(frozen=True, eq=False)
class Case:
    """Random designs of one instance, and their evaluations."""

    model: CostModel
    rows: Relation
    designs: tuple[Design, ...]
    evaluations: tuple[Evaluation, ...]


class Instances:
    """The instances by name, and what is made of them once."""

    names = tuple(TEXTS)

    @staticmethod
    def instance(name: str, *overrides: str) -> Instance:
        return parse(TEXTS[name], overrides=overrides)

    @staticmethod
    @cache
    def model(name: str) -> CostModel:
        return CostModel(parse(TEXTS[name]))

    @staticmethod
    @cache
    def judge(name: str) -> Judge:
        return Judge(parse(TEXTS[name]))

    @classmethod
    def design(cls, name: str, seed: int) -> Design:
        """One random legal design."""
        model = cls.model(name)
        return model.decode(random_designs(model, 1, seed).columns)

    @classmethod
    def case(cls, name: str, count: int, seed: int) -> Case:
        """Random legal designs, judged."""
        model, judge = cls.model(name), cls.judge(name)
        rows = random_designs(model, count, seed)
        designs = tuple(model.decode(rows.columns, row) for row in range(count))
        return Case(model, rows, designs, tuple(judge.evaluate(design) for design in designs))


@pytest.fixture(scope="session")
def instances() -> type[Instances]:
    """See `Instances`."""
    return Instances


@pytest.fixture(params=Instances.names)
def instance_name(request: pytest.FixtureRequest) -> str:
    """Each of the instances in turn."""
    found: str = request.param
    return found
