"""What runs again in the backward: the feed-forward, and some of the layers, in bytes and seconds, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codesign.cost import activations, compute, recompute
from codesign.cost.memory import TrainingMemory
from codesign.errors import SpecError
from codesign.spec.instance import parse
from codesign.spec.limits import Assumptions
from codesign.spec.workload import Model, model_named
from tests.conftest import TEXTS

LLAMA_3_8B = model_named("llama-3-8b")
MIXTRAL = model_named("mixtral-8x7b")
BARE = Assumptions.model_construct(
    weight_bytes=2.0, gradient_bytes=4.0, optimizer_bytes=12.0, memory_reserved_bytes=0.0, memory_fragmentation=0.0
)
KINDS = np.array(["none", "selective", "mlp", "full", "full:3"])


def kept(model: Model, kind: str, tp: int = 1, of: Any = "dense") -> float:
    return float(activations.activation_bytes(model, 8192, 1, tp, 1, kind, of))


# ------------------------------------------------------------------------------------------------------- the words


def test_layers_that_a_word_names() -> None:
    assert recompute.whole_layers(KINDS).tolist() == [0, 0, 0, recompute.EVERY_LAYER, 3]
    # a layer that is not one of the three keeps everything
    assert recompute.of_other_layers(KINDS).tolist() == ["none", "selective", "mlp", "full", "none"]


def test_the_first_layers_of_a_chunk_run_again() -> None:
    # 32 layers on 2 stages of 2 chunks: 8 a chunk
    assert recompute.layers_of_kind(LLAMA_3_8B, "dense", 2, 2, 3).tolist() == [[3, 3], [3, 3]]
    assert recompute.layers_of_kind(LLAMA_3_8B, "dense", 2, 2, 9).tolist() == [[8, 8], [8, 8]]


def test_dense_layers_of_a_mixture_stand_in_front() -> None:
    mixture = MIXTRAL.model_copy(update={"layers": 8, "dense_layers": 3})
    # stages of 4: three dense and one mixture, then four mixtures; two of each run again
    assert recompute.layers_of_kind(mixture, "dense", 2, 1, 2).tolist() == [[2], [0]]
    assert recompute.layers_of_kind(mixture, "mixture", 2, 1, 2).tolist() == [[0], [2]]
    assert recompute.layers_of_kind(mixture, "mixture", 2, 1, 4).tolist() == [[1], [4]]


@pytest.mark.parametrize(
    "word", ["full:0", "full:", "full:-1", "full: 2", "full:2.5", "Full", "full:02", "mlp:2", "", 3]
)
def test_a_word_that_is_none(word: Any) -> None:
    text = TEXTS["blocks-8b"].replace('"full:3"', repr(word).replace("'", '"'))
    with pytest.raises(SpecError) as raised:
        parse(text)
    said = str(raised.value)
    assert "recompute" in said
    assert "expected one of none, selective, mlp, full, or full:N" in said


# ------------------------------------------------------------------------------------------------------------ bytes


def test_the_feed_forward_that_is_dropped() -> None:
    """Per token: gate and up of 14,336 each, and their product, in 2 bytes: 86,016; cut by tp."""
    for tp in (1, 4):
        dropped = kept(LLAMA_3_8B, "none", tp) - kept(LLAMA_3_8B, "mlp", tp)
        assert dropped == pytest.approx(8192 * 3 * 14336 * 2 / tp, rel=1e-12)


def test_the_experts_that_are_dropped() -> None:
    """Per token: 2 x 8 router values in 4 bytes; in 2 bytes 2 copies there and back of 4,096, and their insides."""
    dropped = kept(MIXTRAL, "none", of="mixture") - kept(MIXTRAL, "mlp", of="mixture")
    assert dropped == pytest.approx(8192 * (16 * 4 + 2 * (2 * 2 * 4096 + 2 * 3 * 14336)), rel=1e-12)


def test_some_layers_keep_their_input_only() -> None:
    """Two stages of 16 layers, 8 micro-batches: the first holds two of them, the second one."""
    memory = TrainingMemory(LLAMA_3_8B, 8192, 8, BARE, blocks=True)
    plan = dict.fromkeys(("tp", "cp", "ep", "dp", "virtual_stages", "micro_batch"), 1) | {"pp": 2, "zero": 0}
    every, of_input = kept(LLAMA_3_8B, "none"), kept(LLAMA_3_8B, "full")
    assert of_input == 2 * 8192 * 4096
    for count, again in ((1, 1), (5, 5), (16, 16), (40, 16)):
        for stage, held in ((0, 2), (1, 1)):
            found = memory.by_part(plan | {"recompute": f"full:{count}"}, stage)
            assert found["activations"] == pytest.approx(held * (again * of_input + (16 - again) * every), rel=1e-12)
    # all of them is `full`
    whole, same = (memory.total(plan | {"recompute": word}, 0) for word in ("full", "full:16"))
    assert whole == same


# ---------------------------------------------------------------------------------------------------------- seconds


def test_the_feed_forward_again_is_part_of_the_layer(instances: Any) -> None:
    gpu = instances.judge("blocks-8b").market.servers[0].server.gpu
    forward = compute.layer_forward(LLAMA_3_8B, 8192, 1, 2, 1, gpu, "bf16")
    again = compute.layer_recompute(forward, KINDS[:4])
    assert again.total_s[0] == 0
    assert again.total_s[1] == pytest.approx(float(forward.attention_s))
    assert again.total_s[2] == pytest.approx(float(forward.feed_forward_s))
    assert again.total_s[3] == pytest.approx(float(forward.total_s))
    # three of the layer's matrices of 4,096 x 14,336 among 218 M weights are most of it, and not all
    assert 0.5 < again.total_s[2] / again.total_s[3] < 0.85


def blocks(instances: Any, **changes: Any) -> Any:
    """A step of llama-3.1-8b on one stage, of the plan and the layouts of a design that is legal."""
    judge = instances.judge("blocks-8b")
    for seed in range(400):
        design = instances.design("blocks-8b", seed)
        if design.plan.pp == 1 and design.plan.tp > 1 and design.plan.cp == 1 and design.plan.shard_within == "group":
            plan = replace(design.plan, **{"zero": 1, **changes})
            return judge.evaluate(replace(design, plan=plan)).workloads["pretrain"]
    raise AssertionError("no design of one stage")


@pytest.mark.parametrize("count", [1, 3, 31])
def test_seconds_of_some_layers_lie_between_none_and_full(instances: Any, count: int) -> None:
    """On one stage every micro-batch passes N of 32 whole recomputations, with the collectives that they repeat."""
    none, full, some = (blocks(instances, recompute=word).breakdown_s for word in ("none", "full", f"full:{count}"))
    for part in ("compute", "attention", "recompute", "tensor-parallel communication"):
        assert some[part] == pytest.approx(none[part] + count / 32 * (full[part] - none[part]), rel=1e-9)
    assert blocks(instances, recompute="full:32").step_time_s == pytest.approx(
        blocks(instances, recompute="full").step_time_s, rel=1e-12
    )


def test_hardware_flops_of_some_layers(instances: Any) -> None:
    found = {word: blocks(instances, recompute=word) for word in ("none", "mlp", "full:8", "full")}
    extra = {word: each.hfu / each.mfu - 1.0 for word, each in found.items()}
    assert extra["none"] == 0.0
    assert extra["full:8"] == pytest.approx(extra["full"] / 4, rel=1e-9)
    assert 0.0 < extra["mlp"] < extra["full"]
