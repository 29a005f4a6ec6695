"""Where tangents of the exponential are laid. Floor 4.

A tangent of exp at y0 lies below exp everywhere. Between two tangents at distance d the largest error is about
exp(y) d^2 / 8 (at the middle, d/2 from either), so a term that is a small share of the objective needs few.
"""

from __future__ import annotations

import math

FIRST_ERROR = 2e-3
"""Error that the first tangents may leave on a term, as a share of the objective; later ones are laid where needed."""
SMALL = 5e-4
"""Share of the objective below which a term is left to its bound of zero."""
WIDEST = 2.0
"""Widest distance between tangents, in units of the logarithm."""
MOST = 64
"""Most first tangents on one term."""


def points(lowest: float, highest: float, scale: float) -> list[float]:
    """Logarithms at which the first tangents of `exp(y)`, lowest <= y <= highest, are laid.

    Parameters
    ----------
    scale : the objective's size; tangents stand close where exp(y) is a large share of it. Below a share of
        `SMALL` none is laid (the term is then bounded by zero).
    """
    least = math.log(SMALL * scale)
    if highest <= least:
        return []
    found = [highest]
    while len(found) < MOST:
        share = math.exp(found[-1]) / scale
        step = min(WIDEST, math.sqrt(8.0 * FIRST_ERROR / share))
        below = found[-1] - step
        if below < max(lowest, least):
            if lowest < found[-1]:
                found.append(max(lowest, below))
            break
        found.append(below)
    return found
