"""Limits, objective, and the constants of practice that every answer rests on. Floor 1. SI values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from codesign.spec.stated import Bytes, Seconds, Share, Stated, Usd, UsdPerJoule, Watts, whole

Objective = Literal["time_to_train", "step_time", "tokens_per_s", "total_cost", "tokens_per_usd"]


class Limits(Stated):
    """What a design may take. None: not limited.

    `capex_usd` is the purchase; `power_w` the site with PUE; `deadline_s` the whole run; `gpus` their number.
    """

    capex_usd: Annotated[Usd, Field(gt=0)] | None = None
    power_w: Annotated[Watts, Field(gt=0)] | None = None
    deadline_s: Annotated[Seconds, Field(gt=0)] | None = None
    gpus: Annotated[int, whole(1, 1 << 18)] | None = None


class Assumptions(Stated):
    """Constants of practice; what an instance does not state is taken from the catalogue, with its source.

    Attributes
    ----------
    network_latency_s, network_efficiency : of a message between servers; share of the line rate that arrives.
    overlap_data_parallel : share of the window of compute that gradient reductions and weight gathers can use.
    memory_reserved_bytes, memory_fragmentation : taken on every GPU; share added to all tensors.
    memory_band : share of the capacity below which a design that fits is called tight.
    weight_bytes, gradient_bytes, optimizer_bytes : bytes a parameter.
    failure_gpu_hours : GPU-hours between interruptions of one GPU.
    restart_s : seconds from a failure to reading the checkpoint.
    checkpoint_bytes_per_parameter, checkpoint_retained, storage_headroom : size and number kept; share left free.
    pue : power of the site over that of the equipment.
    electricity_usd_per_joule, depreciation_s, installation_fraction : money.
    bytes_per_token : of training data.
    """

    network_latency_s: Annotated[Seconds, Field(le=1.0)]
    network_efficiency: Annotated[Share, Field(gt=0)]
    overlap_data_parallel: Share
    memory_reserved_bytes: Bytes
    memory_fragmentation: Share
    memory_band: Annotated[Share, Field(lt=1)]
    weight_bytes: Annotated[float, Field(gt=0, le=16)]
    gradient_bytes: Annotated[float, Field(gt=0, le=16)]
    optimizer_bytes: Annotated[float, Field(ge=0, le=64)]
    failure_gpu_hours: Annotated[float, Field(gt=0, le=1e15)]
    restart_s: Seconds
    checkpoint_bytes_per_parameter: Annotated[float, Field(gt=0, le=128)]
    checkpoint_retained: Annotated[int, whole(1, 1000)]
    storage_headroom: Annotated[Share, Field(lt=1)]
    pue: Annotated[float, Field(ge=1, le=10)]
    electricity_usd_per_joule: UsdPerJoule
    depreciation_s: Annotated[Seconds, Field(gt=0)]
    installation_fraction: Annotated[float, Field(ge=0, le=10)]
    bytes_per_token: Annotated[float, Field(gt=0, le=1e6)]
