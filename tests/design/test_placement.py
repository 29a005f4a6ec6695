"""The rank map of a placement, against counting rank by rank."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.cost import collectives
from codesign.design import DIMENSIONS, TIERS, Layout, Placement, Plan
from codesign.design.placement import RankMap, rank_map

GROUPS = [dims for size in (1, 2, 3, 4) for dims in product(DIMENSIONS, repeat=size) if list(dims) == sorted(set(dims))]


def plan_of(placement: Placement) -> Plan:
    degrees = {d: placement.layout(d).degree for d in DIMENSIONS}
    return Plan(**degrees, ep=1, virtual_stages=1, micro_batch=1, recompute="none", zero=0)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Up to six factors of 2 and 3 at random places among four dimensions and three tiers."""
    factors = {d: [1, 1, 1] for d in DIMENSIONS}
    for _ in range(draw(st.integers(0, 6))):
        factors[draw(st.sampled_from(DIMENSIONS))][draw(st.integers(0, 2))] *= draw(st.sampled_from([2, 3]))
    return Placement(**{d: Layout(*each) for d, each in factors.items()})


def groups(ranks: RankMap, dims: tuple[str, ...]) -> dict[tuple[int, ...], list[int]]:
    """Ranks by their coordinates in all other dimensions."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(len(ranks.server)):
        found[tuple(int(ranks.coordinates[d][rank]) for d in DIMENSIONS if d not in dims)].append(rank)
    return found


def test_by_hand() -> None:
    """tp 2 in the domain, pp 2 across servers, dp 2 in the domain and 2 across leaf groups: 16 ranks.

    Rank = tp + 2 dp + 8 pp. dp = domain digit + 2 x pod digit. GPU = tp + 2 x domain digit of dp; server in its leaf
    group = pp; leaf group = pod digit of dp; server = 2 x leaf group + pp.
    """
    one = Layout(1, 1, 1)
    placement = Placement(tp=Layout(2, 1, 1), cp=one, pp=Layout(1, 2, 1), dp=Layout(2, 1, 2))
    ranks = rank_map(plan_of(placement), placement)
    assert ranks.gpu.tolist() == [0, 1, 2, 3, 0, 1, 2, 3] * 2
    assert ranks.leaf_group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert ranks.server.tolist() == [0] * 4 + [2] * 4 + [1] * 4 + [3] * 4
    assert ranks.spans(("tp",)) == (2, 1, 1)
    assert ranks.spans(("pp",)) == (1, 2, 1)
    assert ranks.spans(("dp",)) == (2, 1, 2)
    assert ranks.spans(("dp", "tp")) == (4, 1, 2)
    assert ranks.boundary_tiers(2).tolist() == [1, 1]
    assert [placement.ranks_in(tier) for tier in TIERS] == [4, 2, 2]


def test_ranks_count_tp_first_then_cp_dp_pp() -> None:
    """The default order of Megatron-LM: tp-cp-ep-dp-pp."""
    placement = Placement(tp=Layout(2, 1, 1), cp=Layout(2, 1, 1), pp=Layout(1, 2, 1), dp=Layout(1, 1, 2))
    coordinates = rank_map(plan_of(placement), placement).coordinates
    found = [tuple(int(coordinates[d][rank]) for d in ("pp", "dp", "cp", "tp")) for rank in range(16)]
    assert found == list(product(range(2), repeat=4))


@settings(max_examples=200)
@given(placements())
def test_every_rank_has_a_gpu_of_its_own(placement: Placement) -> None:
    plan = plan_of(placement)
    ranks = rank_map(plan, placement)
    used, leaf, pod = (placement.ranks_in(tier) for tier in TIERS)
    assert plan.world == used * leaf * pod == len(ranks.server)
    places = set(zip(ranks.server.tolist(), ranks.gpu.tolist(), strict=True))
    assert places == set(product(range(leaf * pod), range(used)))
    coordinates = set(zip(*(ranks.coordinates[d].tolist() for d in DIMENSIONS), strict=True))
    assert coordinates == set(product(*(range(plan.degree(d)) for d in DIMENSIONS)))
    assert np.array_equal(ranks.leaf_group, ranks.server // leaf)


@settings(max_examples=200)
@given(placements(), st.sampled_from(GROUPS))
def test_spans_are_what_counting_gives(placement: Placement, dims: tuple[str, ...]) -> None:
    plan = plan_of(placement)
    ranks = rank_map(plan, placement)
    size = prod(plan.degree(d) for d in dims)
    counted = set()
    for members in groups(ranks, dims).values():
        servers = {int(ranks.server[rank]) for rank in members}
        leaves = {int(ranks.leaf_group[rank]) for rank in members}
        assert len(members) == size
        counted.add((size // len(servers), len(servers) // len(leaves), len(leaves)))
    assert counted == {ranks.spans(dims)}  # all groups of a regular placement are alike
    whole = (1, 1, 1)
    for d in dims:
        whole = collectives.merged(whole, placement.layout(d))
    assert ranks.spans(dims) == whole


@settings(max_examples=200)
@given(placements())
def test_boundary_tiers_are_what_counting_gives(placement: Placement) -> None:
    plan = plan_of(placement)
    ranks = rank_map(plan, placement)
    tiers = [0] * plan.pp
    place = {
        (int(ranks.coordinates["pp"][r]), *(int(ranks.coordinates[d][r]) for d in ("tp", "cp", "dp"))): r
        for r in range(plan.world)
    }
    for (stage, *others), rank in place.items():
        following = place[((stage + 1) % plan.pp, *others)]
        if ranks.leaf_group[rank] != ranks.leaf_group[following]:
            tier = 2
        else:
            tier = int(ranks.server[rank] != ranks.server[following])
        tiers[stage] = max(tiers[stage], tier)
    assert ranks.boundary_tiers(plan.pp).tolist() == tiers
    assert collectives.boundary_tiers(placement.pp).tolist() == tiers
    # the factored model counts the boundaries between neighbours, without the way back
    assert collectives.boundaries(placement.pp) == tuple(tiers[:-1].count(tier) for tier in range(3))


@settings(max_examples=100)
@given(placements(), st.integers(0, 2**32 - 1), st.sampled_from(GROUPS))
def test_spans_of_any_numbering(placement: Placement, seed: int, dims: tuple[str, ...]) -> None:
    """On a shuffled map groups are unequal: the most servers, and the most leaf groups, that one of them has."""
    plan = plan_of(placement)
    ranks = rank_map(plan, placement)
    order = np.random.default_rng(seed).permutation(plan.world)
    shuffled = RankMap(ranks.coordinates, ranks.server[order], ranks.gpu[order], ranks.leaf_group[order])
    members = list(groups(shuffled, dims).values())
    servers = max(len({int(shuffled.server[rank]) for rank in each}) for each in members)
    leaves = max(len({int(shuffled.leaf_group[rank]) for rank in each}) for each in members)
    size = len(members[0])
    assert shuffled.spans(dims) == (size // servers, servers // leaves, leaves)


def test_designs_of_the_instances(instances: Any, instance_name: str) -> None:
    """What the judge takes: as many ranks as the plan has, on as many servers as are bought."""
    for design in instances.case(instance_name, 20, seed=41).designs:
        ranks = rank_map(design.plan, design.placement)
        assert len(set(zip(ranks.server.tolist(), ranks.gpu.tolist(), strict=True))) == design.plan.world
        assert set(ranks.server.tolist()) == set(range(design.purchase.servers))


@pytest.mark.parametrize("factors", [(1, 1, 1), (4, 2, 3), (8, 1, 1)])
def test_layout(factors: tuple[int, int, int]) -> None:
    assert Layout(*factors).degree == prod(factors)
