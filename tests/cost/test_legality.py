"""Each rule: just legal, just illegal, and what the refusal says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codesign.cost import legality
from codesign.cost.legality import PROFILES, RULES, Case
from codesign.spec.workload import MultiLatent, model_named

LLAMA_3_70B = model_named("llama-3-70b")
MIXTURE = LLAMA_3_70B.model_copy(update={"name": "mixture", "experts": 8, "top_k": 2, "expert_ffn_hidden": 28672})
CASE = Case(LLAMA_3_70B, 8192, 128, PROFILES["megatron"])


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "tp": 1,
        "cp": 1,
        "ep": 1,
        "pp": 1,
        "dp": 1,
        "virtual_stages": 1,
        "micro_batch": 1,
        "zero": 0,
    } | changes


def broken(case: Case = CASE, **changes: Any) -> list[str]:
    return [violation.rule for violation in legality.check(case, plan(**changes))]


def with_profile(**changes: Any) -> Case:
    return replace(CASE, profile=replace(CASE.profile, **changes))


LATENT = MultiLatent(q_rank=1536, kv_rank=512, nope_size=128, rope_size=64, value_size=128)
TORCHTITAN = replace(CASE, profile=PROFILES["torchtitan"])
DEEPSPEED = replace(CASE, profile=PROFILES["deepspeed"])


@pytest.mark.parametrize(
    ("case", "changes", "rules"),
    [
        (CASE, {"tp": 8}, []),
        (
            CASE,
            {"tp": 3},
            ["attention heads", "key and value heads", "feed-forward width", "sequence length"],
        ),
        (CASE, {"tp": 16}, ["key and value heads"]),
        (with_profile(replicates_kv_heads=True), {"tp": 16}, []),
        (replace(CASE, model=LLAMA_3_70B.model_copy(update={"multi_latent": LATENT})), {"tp": 64}, []),
        (with_profile(vocabulary_multiple=None), {"tp": 4}, []),
        (
            replace(
                with_profile(vocabulary_multiple=None),
                model=LLAMA_3_70B.model_copy(update={"vocabulary": 101}),
            ),
            {"tp": 4},
            ["vocabulary"],
        ),
        (replace(CASE, sequence_length=8190), {"cp": 2, "tp": 1}, ["sequence length"]),
        (replace(CASE, sequence_length=8188), {"cp": 2, "tp": 1}, []),
        (DEEPSPEED, {"cp": 2}, ["context parallelism"]),
        (CASE, {"dp": 32, "micro_batch": 4}, []),
        (CASE, {"dp": 48}, ["global batch"]),
        (CASE, {"pp": 8, "virtual_stages": 5}, []),
        (CASE, {"pp": 32}, ["layer split"]),
        (replace(CASE, model=LLAMA_3_70B.model_copy(update={"layers": 126})), {"pp": 16}, []),
        (CASE, {"virtual_stages": 2}, ["interleaving"]),
        (DEEPSPEED, {"pp": 4, "virtual_stages": 2}, ["interleaving"]),
        (TORCHTITAN, {"pp": 4, "virtual_stages": 2}, []),
        # 128 / 64 = 2 micro-batches are no group of 4
        (CASE, {"pp": 4, "virtual_stages": 2, "dp": 64}, ["interleaved groups"]),
        (CASE, {"pp": 4, "virtual_stages": 1, "dp": 64}, []),
        (CASE, {"pp": 2, "zero": 1}, []),
        (CASE, {"pp": 2, "zero": 2}, ["sharding with a pipeline"]),
        (CASE, {"pp": 1, "zero": 3}, []),
        (CASE, {"ep": 2, "dp": 2}, ["experts"]),
        (replace(CASE, model=MIXTURE), {"ep": 8, "tp": 2, "cp": 2, "dp": 2}, []),
        (replace(CASE, model=MIXTURE), {"ep": 8, "tp": 2, "dp": 2}, ["expert groups"]),
        (replace(DEEPSPEED, model=MIXTURE), {"ep": 8, "tp": 2, "dp": 4}, ["expert groups"]),
        (replace(CASE, model=MIXTURE), {"ep": 3, "dp": 3}, ["global batch", "experts"]),
        (replace(CASE, gpus=64), {"tp": 8, "dp": 8}, []),
        (replace(CASE, gpus=64), {"tp": 8, "dp": 4}, ["world size"]),
    ],
)
def test_rules(case: Case, changes: dict[str, int], rules: list[str]) -> None:
    assert broken(case, **changes) == rules
    assert bool(legality.legal(case, plan(**changes))) == (not rules)


def test_a_mixture_cuts_its_shared_experts_but_not_the_routed() -> None:
    odd = MIXTURE.model_copy(update={"expert_ffn_hidden": 27})
    assert broken(replace(CASE, model=odd), tp=8) == []
    shared = odd.model_copy(update={"shared_experts": 1})
    assert broken(replace(CASE, model=shared), tp=8) == ["feed-forward width"]


def test_arrays_of_plans() -> None:
    tp, pp = np.array([[1], [3], [8]]), np.array([1, 2, 32])
    found = legality.legal(CASE, plan(tp=tp, pp=pp))
    np.testing.assert_array_equal(found, [[True, True, False], [False] * 3, [True, True, False]])


def test_a_rule_needs_its_own_decisions_only() -> None:
    chosen = legality.USUAL | plan()
    for rule in RULES:
        legality.holds(rule, CASE, {name: chosen[name] for name in rule.decisions})


def test_names_of_rules_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert legality.rule("experts").decisions == ("ep",)


def test_every_violation_says_numbers_and_what_would_be_legal() -> None:
    (violation,) = legality.check(CASE, plan(dp=48))
    assert "global batch 128 is no multiple of dp 48 * micro-batch 1 = 48 (2.67 micro-batches)" in violation.message
    assert "nearest legal batches: 96, 144" in violation.message
    assert violation.legal["dp"] == (1, 2, 4, 8, 16, 32, 64, 128)
    assert "legal dp: 1, 2, 4, 8, 16, 32, 64, 128" in violation.message


def test_long_lists_are_cut_around_the_value_found() -> None:
    (violation,) = legality.check(replace(CASE, global_batch=5040), plan(dp=11))
    assert len(violation.legal["dp"]) == 60
    assert "legal dp: ..., 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, ..." in violation.message


def test_explain() -> None:
    assert legality.explain(CASE, plan(tp=8)) == "legal for megatron"
    lines = legality.explain(CASE, plan(pp=32, dp=48)).split("\n")
    assert [line.split(":")[0] for line in lines] == ["global batch", "layer split"]
    assert "80 layers cannot be placed on pp 32" in lines[1]


def test_unmendable_is_not_mended() -> None:
    # pp divides one of 80 to 86, embedding and loss counted as up to three layers each; nothing mends pp 32
    (violation,) = legality.check(CASE, plan(pp=32))
    assert violation.legal["virtual_stages"] == ()
    # 41 x 2 = 82: 41 stages of two layers, the ends of one; 43 x 2 = 86 would leave the ends without any
    assert violation.legal["pp"] == tuple(
        p
        for p in range(1, 81)
        if any((80 + c) % p == 0 and (80 + c) // p > (c + 1) // 2 for c in range(7)) and (p > 1 or 80 % p == 0)
    )
    assert 41 in violation.legal["pp"]
    assert 43 not in violation.legal["pp"]


@pytest.mark.parametrize(
    ("batch", "dp", "micro", "found"),
    [(256, 7, 2, (252, 266)), (256, 8, 2, (256,)), (3, 8, 1, (8,))],
)
def test_nearest_legal_batches(batch: int, dp: int, micro: int, found: tuple[int, ...]) -> None:
    assert legality.nearest_legal_batches(batch, dp, micro) == found


def test_uneven_splits() -> None:
    assert legality.uneven_splits(40, 16)[0] == (6, 2)
    assert legality.uneven_splits(30, 4)[0] == (7, 8)
    assert (8, 7) in legality.uneven_splits(30, 4)
    assert legality.uneven_splits(5, 2) == ()
    for layers, pp in [(92, 8), (61, 16), (46, 4)]:
        for end, middle in legality.uneven_splits(layers, pp):
            assert 2 * end + (pp - 2) * middle == layers
            assert min(end, middle) >= 1


def test_profiles_name_their_source() -> None:
    assert set(PROFILES) == {"megatron", "torchtitan", "deepspeed"}
    assert all(profile.source for profile in PROFILES.values())
