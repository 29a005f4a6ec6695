"""What each table of the cost model computes, in symbols, and where the formula is from. Floor 3. Plain data.

Symbols: b micro-batch, s sequence length, h hidden width, t tp, c cp, e ep, p pp, d dp, v virtual stages, m
micro-batches a step, n ranks of a group, n0 n1 n2 its ranks a domain, domains a leaf group, leaf groups; M bytes of a
message.
"""

from __future__ import annotations

from typing import NamedTuple


class Formula(NamedTuple):
    """`text` in symbols, `source` where it was published."""

    text: str
    source: str


UNSTATED = Formula("", "")

NARAYANAN = "Narayanan et al. 2021 (SC'21)"
KORTHIKANTI = "Korthikanti et al. 2022"
THAKUR = "Thakur, Rabenseifner, Gropp 2005, section 4"
RAJBHANDARI = "Rajbhandari et al. 2020"

MATRICES = Formula(
    "sum over matrices of max(2 (bs/c) in out / (peak eta), bytes / memory rate) + elementwise bytes / memory rate "
    "+ gaps; "
    "eta = ceiling T/(T + tokens_half) w/(w + width_half), T = bs/c, w = h/t",
    f"FLOPs: {NARAYANAN}, appendix; maximum: Williams et al. 2009; eta: fitted",
)
ATTENTION = Formula(
    "2 (bs/c) s a (d_qk + d_v) / 2 / t / (peak ceiling): the causal half, in 16 bit", f"{NARAYANAN}, appendix; fitted"
)
PASSES = Formula("times that a pass runs, 1 more where it is recomputed", f"{KORTHIKANTI}, section 5")
SHARDED = Formula("1 where this ZeRO stage moves it, else 0", f"{RAJBHANDARI}, section 5")
GATHER_SHARE = Formula("(n_i - 1) / n_i / (n_0 .. n_(i-1))", f"{THAKUR}; tier by tier")
GATHER_STEPS = Formula("n_i - 1", THAKUR)
ALL_REDUCE_SHARE = Formula(
    "the lesser of 2 (n_i - 1)/n_i and, where switches reduce, (1 + 1/n_0)/efficiency in the domain (NVLS), 1 beyond "
    "it (SHARP); / (n_0 .. n_(i-1))",
    f"{THAKUR}; NCCL, src/graph/tuning.cc; tier by tier",
)
ALL_REDUCE_STEPS = Formula("2 (n_i - 1); 2 where switches reduce", f"{THAKUR}; NCCL, src/graph/tuning.cc")
REDUCES = Formula("1 where the switches of the tier reduce, else 0", "hardware, and the assumptions nvls and sharp")
COPIES = Formula(
    "domain: k (n0 - 1)/n0; beyond: D (1 - (1 - 1/D)^k) (D - 1)/D with D domains",
    "DeepSeek-V3 technical report 2024, section 3.2.2; mean of different values among k draws",
)
RING_HOPS = Formula("n - 1 where the ring spans the tier", "Liu et al. 2023, ring attention, section 3")
BOUNDARIES = Formula("share of the p - 1 stage boundaries that cross the tier", NARAYANAN)
TOKENS_SHARE = Formula("b/c, or b/(c t) where the sequence is cut by t too", f"{KORTHIKANTI}, section 4.2.2")
PER_BYTE = Formula("1 / (bandwidth of a GPU's share, oversubscription counted)", "catalogue")
PER_MESSAGE = Formula("latency of a message, switches on the way counted", "catalogue")
PARAMETERS = Formula("weights on a rank before sharding, vocabulary padded", "Megatron-LM, shapes of its layers")
CHAIN = Formula("times that the longest chain of dependent operations passes it", f"{NARAYANAN}, section 2.2")
WINDOW = Formula("layers of the first stage", f"{NARAYANAN}, section 2.2")
HEAD = Formula(
    "2 (bs/c) h V/t / (peak eta) + passes over the logits / memory rate", f"{NARAYANAN}, appendix; {KORTHIKANTI}, 4.3"
)
EMBEDDING = Formula("2 h (bs/c) 2 bytes / memory rate", "bytes read and written")
OPTIMIZER = Formula(
    "parameters (gradient + 2 states + weight bytes) / memory rate, over d c where sharded", f"{RAJBHANDARI}, section 5"
)
HOST = Formula("host time of a layer (1 + skew ((t - 1)/7)^3)", "fitted")
CHOSEN = Formula("1 where the decision has this value, else 0", "")
WITHIN_DOMAIN = Formula(
    "times that a message crosses the tier: weights stay inside the domain that they are sharded over, gradients are "
    "reduced inside it and all-reduced beyond",
    "Zhao et al. 2023 (PyTorch FSDP), section 3.2.2",
)
SHARE_AGAIN = Formula(
    "min(N, l)/l of the l layers of a chunk, the least of all chunks", "Megatron-LM, the block method"
)
SEVERAL = Formula("1 where the group has more than one rank", "")
READING = Formula("tokens bytes a token / min(storage, servers' ports)", "bytes over the slowest part of the way")
OVERHEAD = Formula("expected wall-clock over work, at the best interval", "Daly 2006, eq. 12")
MONEY = Formula(
    "counts of parts times their prices", "catalogue; counting rules of the vendors' reference architectures"
)
WATTS = Formula("counts of parts times their power", "catalogue")
MEMORY = Formula("bytes on a rank, see the parts of `evaluate`", f"{KORTHIKANTI}, eq. 1 to 6; {RAJBHANDARI}, section 5")
