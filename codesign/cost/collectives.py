"""Seconds of collectives over the tiers that a group spans. Floor 3. In: layouts, message bytes, rates of the tiers.

A group with `n_0` ranks in the domain, `n_1` domains in the leaf group and `n_2` leaf groups moves a message of M bytes
tier by tier (hierarchical algorithm): tier i works on `M / (n_0 .. n_(i-1))` bytes, at the bandwidth and latency of
that tier for one rank. A reduce-scatter or all-gather over n ranks takes `(n-1) latency + (n-1)/n M / bandwidth`.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005,
section 4 (ring all-gather and reduce-scatter); hierarchy as in NCCL's own cost model (src/graph/tuning.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codesign.design import TIERS, Layout
from codesign.spec.hardware import Nic, Server, Switch
from codesign.spec.limits import Assumptions

Floats = npt.NDArray[np.float64]

SWITCHES_ON_A_PATH = {0: (0, 0), 1: (1, 1), 2: (1, 3), 3: (1, 5)}
"""Switches between two servers of one leaf group, and of different ones, by tiers of switches in the fabric."""


@dataclass(frozen=True)
class TierRates:
    """For one rank, one direction, by tier (domain, leaf, pod): seconds a byte, and seconds a message."""

    seconds_per_byte: tuple[float, float, float]
    latency_s: tuple[float, float, float]
    in_switch: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Share of the bandwidth that all-reduces inside the tier's switches reach; 0 where these do not reduce."""


def tier_rates(
    server: Server, nic: Nic | None, switch: Switch | None, tiers: int, oversubscription: int, assumptions: Assumptions
) -> TierRates:
    """What one rank gets at each tier.

    The NICs of a server are shared equally by its GPUs; beyond the leaf the share is divided by the oversubscription.
    Without a NIC and a switch (a single server) the outer tiers cannot be used: their rates are infinite seconds.
    """
    gpu = server.gpu
    in_domain = gpu.in_switch_efficiency * assumptions.nvls
    if nic is None or switch is None:
        never = float("inf")
        return TierRates(
            (1.0 / gpu.domain_bandwidth_bytes_per_s, never, never),
            (gpu.domain_latency_s, never, never),
            (in_domain, 0.0, 0.0),
        )
    beyond = float(switch.in_network_reduction and assumptions.sharp)
    share = server.nics * nic.bandwidth_bytes_per_s * assumptions.network_efficiency / server.gpus
    near, far = SWITCHES_ON_A_PATH[tiers]
    return TierRates(
        (1.0 / gpu.domain_bandwidth_bytes_per_s, 1.0 / share, oversubscription / share),
        (
            gpu.domain_latency_s,
            assumptions.network_latency_s + near * switch.latency_s,
            assumptions.network_latency_s + far * switch.latency_s,
        ),
        (in_domain, beyond, beyond),
    )


def gather_shares(layout: Sequence[int]) -> tuple[float, ...]:
    """Share of the whole message that a rank moves at each tier in a reduce-scatter or all-gather."""
    shares: list[float] = []
    inner = 1
    for factor in layout:
        shares.append((factor - 1) / factor / inner)
        inner *= factor
    return tuple(shares)


def gather_steps(layout: Sequence[int]) -> tuple[int, ...]:
    """Messages that follow one another at each tier in a reduce-scatter or all-gather."""
    return tuple(factor - 1 for factor in layout)


def gather_s(message_bytes: float, layout: Sequence[int], rates: TierRates) -> float:
    """Reduce-scatter or all-gather of a message of `message_bytes` (its size when whole) over a group."""
    return float(
        sum(
            (share * message_bytes * per_byte + steps * latency) if steps else 0.0
            for share, steps, per_byte, latency in zip(
                gather_shares(layout), gather_steps(layout), rates.seconds_per_byte, rates.latency_s, strict=True
            )
        )
    )


def all_reduce_shares(layout: Sequence[Any], in_switch: Sequence[float]) -> tuple[Any, ...]:
    """Share of the whole message that a rank moves at each tier in an all-reduce, over what its bandwidth yields there.

    A reduce-scatter and an all-gather move 2 (n-1)/n. Switches that reduce take the message once: inside the domain a
    GPU also moves the n-th that it is in charge of, so 1 + 1/n (NVLS); beyond it 1 (SHARP). The lesser is used. Layouts
    may be arrays.

    Source: NCCL, src/graph/tuning.cc (bandwidth of NVLS and CollNet); `in_switch` is the share of bandwidth reached.
    """
    shares: list[Any] = []
    inner: Any = 1
    for tier, (factor, reached) in enumerate(zip(layout, in_switch, strict=True)):
        shares.append(np.minimum(_two_passes(factor), _once(factor, tier, reached)) / inner)
        inner = inner * factor
    return tuple(shares)


def all_reduce_steps(layout: Sequence[Any], in_switch: Sequence[float]) -> tuple[Any, ...]:
    """Messages that follow one another at each tier in an all-reduce: to the switch and back where it reduces."""
    return tuple(
        np.where(_once(factor, tier, reached) < _two_passes(factor), 2, 2 * (np.asarray(factor) - 1))
        for tier, (factor, reached) in enumerate(zip(layout, in_switch, strict=True))
    )


def _two_passes(factor: Any) -> Any:
    return 2.0 * ((np.asarray(factor) - 1) / factor)


def _once(factor: Any, tier: int, reached: float) -> Any:
    if not reached:
        return np.full(np.shape(factor), np.inf)
    moved = 1.0 + 1.0 / np.asarray(factor) if tier == 0 else 1.0
    return np.where(np.asarray(factor) > 1, moved / reached, np.inf)


def all_reduce_s(message_bytes: float, layout: Sequence[int], rates: TierRates) -> float:
    """All-reduce of a message of `message_bytes` over a group; without reducing switches it is twice `gather_s`."""
    shares = all_reduce_shares(layout, rates.in_switch)
    return float(
        sum(
            (share * message_bytes * per_byte + steps * latency) if steps else 0.0
            for share, steps, per_byte, latency in zip(
                shares,
                all_reduce_steps(layout, rates.in_switch),
                rates.seconds_per_byte,
                rates.latency_s,
                strict=True,
            )
        )
    )


def within_domain_s(message_bytes: float, layout: Sequence[int], rates: TierRates, *, gradients: bool) -> float:
    """Gather of weights, or reduction of gradients, that are sharded within the domain and copied beyond it.

    Weights are gathered inside the domain. Gradients are reduced and scattered there, and what a rank keeps of them is
    all-reduced over the ranks that hold the same (Zhao et al. 2023, section 3.2.2).
    """
    inside, near, far = layout
    inside_s = gather_s(message_bytes, (inside, 1, 1), rates)
    if not gradients:
        return inside_s
    return inside_s + all_reduce_s(message_bytes / inside, (1, near, far), rates)


def exchange_copies(layout: Sequence[Any], top_k: int) -> tuple[Any, ...]:
    """Copies of a token that cross each tier on the way to its `top_k` experts, spread evenly over a group.

    A token is sent once to each domain that has one of its experts, and copied on inside. With D domains it meets
    D (1 - (1 - 1/D)^k) of them in the mean, all but the share 1/D of them foreign; inside, each of the k copies
    leaves its GPU with probability (n_0 - 1)/n_0.

    Source: node-limited dispatch of DeepEP (DeepSeek-V3 technical report, 2024, section 3.2.2); the mean number of
    different values among k draws of D. Layouts may be arrays.
    """
    inside, near, far = (np.asarray(factor, dtype=np.float64) for factor in layout)
    domains = near * far
    met = domains * (1.0 - (1.0 - 1.0 / domains) ** top_k)
    foreign = met * (domains - 1.0) / domains
    beside = foreign * (near - 1.0) / np.maximum(domains - 1.0, 1.0)
    return top_k * (inside - 1.0) / inside, beside, foreign - beside


def exchange_s(message_bytes: float, layout: Sequence[int], top_k: int, rates: TierRates) -> float:
    """All-to-all that sends a rank's tokens, `message_bytes` before they are copied, to their experts (or back)."""
    return float(
        sum(
            (copies * message_bytes * per_byte + steps * latency) if steps else 0.0
            for copies, steps, per_byte, latency in zip(
                exchange_copies(layout, top_k),
                gather_steps(layout),
                rates.seconds_per_byte,
                rates.latency_s,
                strict=True,
            )
        )
    )


def hop_s(message_bytes: float, tier: int, rates: TierRates) -> float:
    """One message from one rank to another across a tier."""
    return message_bytes * rates.seconds_per_byte[tier] + rates.latency_s[tier]


def ring_s(message_bytes: float, layout: Sequence[int], rates: TierRates) -> float:
    """All ranks of a group pass `message_bytes` on, all around the ring; its slowest hop sets the pace."""
    degree = int(np.prod(layout))
    hops = [hop_s(message_bytes, tier, rates) for tier, factor in enumerate(layout) if factor > 1]
    return (degree - 1) * max(hops, default=0.0)


def boundaries(layout: Sequence[int]) -> tuple[int, ...]:
    """How many of the boundaries between neighbouring pipeline stages cross each tier.

    Stages are numbered with the domain digit fastest; the boundaries add up to the degree less one.
    """
    inner_first = []
    outer = int(np.prod(layout))
    for factor in layout:
        outer //= factor
        inner_first.append((factor - 1) * outer)
    return tuple(inner_first)


def boundary_tiers(layout: Layout) -> npt.NDArray[np.int64]:
    """Tier that each boundary between stage i and i + 1 crosses, and last the one from the last stage to the first.

    Shape (degree,); with one stage an array of one zero, which nothing uses.
    """
    degree = layout.degree
    stage = np.arange(degree)
    following = (stage + 1) % degree
    tier = np.zeros(degree, dtype=np.int64)
    inner = layout.domain
    for outer_tier in range(1, len(TIERS)):
        tier[stage // inner != following // inner] = outer_tier
        inner *= layout[outer_tier]
    return tier


def merged(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Layout of the group that spans two dimensions: factors multiply tier by tier."""
    return tuple(a * b for a, b in zip(first, second, strict=True))
