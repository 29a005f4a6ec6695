"""What each training framework allows, as data. Floor 3.

A profile describes what is modelled here; a framework may take more (explicit layer counts, other schedules),
and then a refusal is on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from codesign.cost import architecture


@dataclass(frozen=True)
class FrameworkProfile:
    """What a training framework allows.

    Attributes
    ----------
    replicates_kv_heads
        Whether tensor parallelism may exceed the key and value heads, as a multiple of them.
    vocabulary_multiple
        The vocabulary is padded to this times `tp`; 1 means shards may be uneven; None means that `tp` must
        divide it as it is.
    interleaving, context_parallel
        Whether it has an interleaved pipeline schedule; ring context parallelism.
    expert_ranks
        The degrees whose ranks expert groups are carved from.
    schedules
        Orders of the pipeline's operations that it has; all of them are proposed.
    shards_within
        Ranks that it is proposed to spread sharded states over.
    source
        Where the rules were read.
    """

    name: str
    replicates_kv_heads: bool
    vocabulary_multiple: int | None
    interleaving: bool
    context_parallel: bool
    expert_ranks: tuple[str, ...]
    source: str
    schedules: tuple[str, ...] = ("1f1b",)
    shards_within: tuple[str, ...] = ("group",)


PROFILES: Mapping[str, FrameworkProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            FrameworkProfile(
                "megatron",
                replicates_kv_heads=False,
                vocabulary_multiple=architecture.MEGATRON_VOCABULARY_MULTIPLE,
                interleaving=True,
                context_parallel=True,
                expert_ranks=("tp", "cp", "dp"),
                source="NVIDIA/Megatron-LM, transformer_config.py: heads and num_query_groups multiples "
                "of the tensor parallel size (some versions of 2026 relax the second); "
                "NVIDIA/Megatron-LM#5958 for experts",
            ),
            FrameworkProfile(
                "torchtitan",
                replicates_kv_heads=False,
                vocabulary_multiple=1,
                interleaving=True,
                context_parallel=True,
                expert_ranks=("tp", "cp", "dp"),
                source="pytorch/torchtitan#2577 for key and value heads; PyTorch DTensor for uneven shards; "
                "torch.distributed.pipelining, interleaved zero-bubble schedule; fully_shard over a mesh of two "
                "dimensions",
                schedules=("1f1b", "zb-h1"),
                shards_within=("group", "domain"),
            ),
            FrameworkProfile(
                "deepspeed",
                replicates_kv_heads=False,
                vocabulary_multiple=architecture.MEGATRON_VOCABULARY_MULTIPLE,
                interleaving=False,
                context_parallel=False,
                expert_ranks=("dp",),
                source="deepspeedai/DeepSpeed, pipeline engine: 1F1B only, ZeRO-2 and ZeRO-3 refused with a "
                "pipeline; tensor parallelism and padding as Megatron-DeepSpeed has them",
            ),
        )
    }
)
