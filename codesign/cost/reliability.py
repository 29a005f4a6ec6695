"""Checkpoints, failures and the time that they cost. Floor 3. In: sizes, rates, counts. Out: seconds and overheads.

The run saves every `interval` seconds of work, stalls while it saves, and after a failure restarts and reads the last
checkpoint. Failures come at random at a constant rate for each GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

HOUR_S = 3600.0
INTERVALS_S: tuple[float, ...] = tuple(60.0 * 2.0 ** (step / 2.0) for step in range(0, 23))
"""Checkpoint intervals to choose from: one minute to 34 hours in steps of the square root of two."""

HOPELESS = 30.0
"""Segment over mean time to interruption beyond which a run makes no headway: exp(30) = 10^13 tries a segment."""


def mean_time_to_interruption_s(failure_gpu_hours: float, gpus: npt.ArrayLike) -> Floats:
    """Mean seconds between interruptions of a job on `gpus` GPUs: unit rate over units (Llama 3: 50,677 GPU-hours)."""
    return np.asarray(failure_gpu_hours * HOUR_S / np.asarray(gpus, dtype=np.float64))


def save_s(
    checkpoint_bytes: npt.ArrayLike,
    storage_bytes_per_s: npt.ArrayLike,
    servers_bytes_per_s: npt.ArrayLike,
    host_copy_bytes_per_s: npt.ArrayLike = np.inf,
) -> Floats:
    """Seconds to move a checkpoint: the narrowest of storage, the servers' links to it, and copies to the host."""
    rate = np.minimum(np.minimum(storage_bytes_per_s, servers_bytes_per_s), host_copy_bytes_per_s)
    return np.asarray(np.asarray(checkpoint_bytes, dtype=np.float64) / rate)


def overhead(
    interval_s: npt.ArrayLike, save_s: npt.ArrayLike, restart_s: npt.ArrayLike, interruption_s: npt.ArrayLike
) -> Floats:
    """Wall-clock seconds for each second of work (at least 1), exact for exponentially distributed failures.

    `M exp(R/M) (exp((interval + save)/M) - 1) / interval`, M the mean time to interruption, R the restart. Infinite
    where a segment is so much longer than M that the run makes no headway.

    Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22, 2006, eq. 12.
    """
    mean = np.asarray(interruption_s, dtype=np.float64)
    interval = np.asarray(interval_s, dtype=np.float64)
    segment = (interval + np.asarray(save_s, dtype=np.float64)) / mean
    restart = np.asarray(restart_s, dtype=np.float64) / mean
    hopeless = (segment > HOPELESS) | (restart > HOPELESS)
    with np.errstate(over="ignore"):
        value = mean * np.exp(np.minimum(restart, HOPELESS)) * np.expm1(np.minimum(segment, HOPELESS)) / interval
    return np.where(hopeless, np.inf, value)
