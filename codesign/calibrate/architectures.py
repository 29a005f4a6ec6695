"""The model of a measured run: stated sizes, or the family's in the catalogue. Floor 5. In: a `Run`. Out: a `Model`.

Stated sizes go first, `layers` also over those of a family (proxies with fewer layers). Without a stated width a
feed-forward has 4 times hidden, ungated.
"""

from __future__ import annotations

import re

from codesign import catalogue
from codesign.calibrate.runs import Run
from codesign.spec.workload import Model, model_named


class Unpredictable(Exception):
    """A run that cannot be predicted; the message is the reason, the same text for the same reason."""


FAMILIES: tuple[tuple[str, float | None, str], ...] = (
    (r"llama.?3|llama.?3\.1", 405, "llama-3.1-405b"),
    (r"llama.?3|llama.?3\.1", 70, "llama-3-70b"),
    (r"llama.?3|llama.?3\.1", 8, "llama-3-8b"),
    (r"llama.?2", 7, "llama-2-7b"),
    (r"llama.?2", 13, "llama-2-13b"),
    (r"llama.?2", 70, "llama-2-70b"),
    (r"grok", None, "grok-1"),
    (r"nemotron.?h\b", None, ""),
    (r"nemotron.?4", 15, "nemotron-4-15b"),
    (r"nemotron.?4", 340, "nemotron-4-340b"),
    (r"nemotron", 8, "nemotron-3-8b"),
    (r"nemotron", 22, "nemotron-3-22b"),
    (r"mpt.?125m", None, "mpt-125m"),
    (r"mpt.?350m", None, "mpt-350m"),
    (r"mpt.?760m", None, "mpt-760m"),
    (r"mpt.?1b", None, "mpt-1b"),
    (r"mpt.?3b", None, "mpt-3b"),
    (r"mpt.?7b", None, "mpt-7b"),
    (r"mpt.?13b", None, "mpt-13b"),
    (r"mpt.?30b", None, "mpt-30b"),
    (r"mpt.?70b", None, "mpt-70b"),
    (r"gpt.?oss", 120, "gpt-oss-120b"),
    (r"qwen.?3", 30, "qwen3-30b-a3b"),
    (r"qwen.?3", 235, "qwen3-235b-a22b"),
    (r"deepseek.?v3", None, "deepseek-v3"),
    (r"kimi.?k2", None, "kimi-k2"),
    (r"mixtral", None, "mixtral-8x7b"),
    (r"gpt|megatron", 175, "gpt3-175b"),
    (r"gpt|megatron", 5, "gpt3-5b"),
)
"""Pattern of the name, billions of parameters (None: any), record of the catalogue ("" : known, but not modelled)."""

UNMODELLED = re.compile(r"nemotron.?h\b|nemotron.?3.?(nano|super|ultra|5)|mamba|deepseek.?v4|llama.?4|maverick", re.I)
"""Architectures that the model does not have: state-space layers, experts on every other layer, sparse attention."""

NEAR = 0.08
"""Relative difference of the stated number of parameters at which a family member still is meant."""


def architecture_of(run: Run, filled: list[str]) -> Model:
    """The model of a run: stated sizes, or the family's in the catalogue."""
    name = run.text("model")
    if UNMODELLED.search(name):
        raise Unpredictable("the architecture is not modelled (state-space or sparse layers)")
    layers, hidden, heads = run.count("layers"), run.count("hidden"), run.count("heads")
    known = _family(name, run.number("params_b"))
    if known is not None and hidden in (None, model_named(known).hidden):
        model = model_named(known)
        if layers is not None and layers != model.layers:
            model = model.model_copy(update={"layers": layers, "dense_layers": min(model.dense_layers, layers)})
        return model
    if hidden is None:
        raise Unpredictable("the architecture is not stated")
    vocabulary = run.count("vocab")
    if vocabulary is None:
        vocabulary = 50257
        filled.append("vocabulary of GPT-2")
    gated = run.count("ffn_hidden") is not None and run.count("ffn_hidden") != 4 * hidden
    if heads is None:
        heads = _heads(hidden, run.count("tp") or 1)
        filled.append(f"{heads} heads, of a size near 128")
    if hidden % heads:
        raise Unpredictable("the heads do not divide the hidden width")
    if layers is None:
        layers = _layers(run.number("params_b"), hidden, vocabulary, run.count("pp") or 1)
        filled.append(f"{layers} layers, from the number of parameters")
    if run.count("experts") is not None:
        raise Unpredictable("the architecture of the experts is not stated")
    return Model(
        name="stated",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=run.count("kv_heads") or heads,
        head_size=hidden // heads,
        ffn_hidden=run.count("ffn_hidden") or 4 * hidden,
        gated=gated,
        vocabulary=vocabulary,
        tied_embeddings=not gated,
    )


def _family(name: str, params_b: float | None) -> str | None:
    for pattern, size, known in FAMILIES:
        if not re.search(pattern, name, re.I):
            continue
        named = re.search(r"(\d+(?:\.\d+)?)\s*b\b", name, re.I)
        stated = params_b if params_b is not None else (float(named.group(1)) if named else None)
        if size is None or (stated is not None and abs(stated - size) <= NEAR * size):
            if known not in catalogue.load().names("models"):
                return None
            return known
    return None


def _heads(hidden: int, tp: int) -> int:
    """Heads of a size nearest to 128, a multiple of 16 that divides `hidden` and that `tp` divides."""
    counts = [n for n in range(16, hidden // 32 + 1, 16) if hidden % n == 0 and n % tp == 0]
    return min(counts, key=lambda n: abs(hidden / n - 128)) if counts else 1


def _layers(params_b: float | None, hidden: int, vocabulary: int, pp: int) -> int:
    """Layers of 12 h^2 parameters that make up the stated total, rounded to what the stages divide evenly."""
    if params_b is None:
        raise Unpredictable("neither the layers nor the number of parameters are stated")
    exact = (params_b * 1e9 - vocabulary * hidden) / (12.0 * hidden**2)
    return max(pp, round(exact / pp) * pp)
