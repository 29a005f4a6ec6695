"""Limits, objective, and the constants of practice that every answer rests on. Floor 1. SI values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from codesign.spec.stated import Bytes, Name, Seconds, Share, Stated, Usd, UsdPerJoule, Watts, whole

Objective = Literal["time_to_train", "step_time", "tokens_per_s", "total_cost", "tokens_per_usd"]


class Limits(Stated):
    """What a design may take. None: not limited.

    `capex_usd` is the purchase; `power_w` the site with PUE; `deadline_s` the whole run; `gpus` their number.
    """

    capex_usd: Annotated[Usd, Field(gt=0)] | None = None
    power_w: Annotated[Watts, Field(gt=0)] | None = None
    deadline_s: Annotated[Seconds, Field(gt=0)] | None = None
    gpus: Annotated[int, whole(1, 1 << 18)] | None = None


class SoftwareConstants(Stated):
    """What training software makes of the hardware, beside its kernels.

    Attributes
    ----------
    overlap_data_parallel : share of the window of compute that gradient reductions and weight gathers can use.
    overlap_tensor_parallel, overlap_expert_parallel : share of that traffic that hides under the layer's own compute.
    sharding_efficiency : share of the network's bandwidth that gathers and reductions of single sharded layers reach.
    kernel_share : rate of the software's kernels over that of the GPU's fit.
    gradient_bytes : bytes a parameter of the gradients that a rank keeps.
    reduced_gradient_bytes : bytes a parameter of the gradients that cross the network.
    attention_share : rate of its attention kernel over that of the GPU's fit, on top of `kernel_share`.
    launch_share : share of the GPU's launch gaps that remain; recorded graphs of kernels have few.
    collective_launch_s : seconds to start and join a tensor- or expert-parallel collective, beside its messages.
    host_layer_s : seconds the host takes to issue the forward of a layer, below which no layer can run.
    host_skew : share that a tensor-parallel group of 8 adds to it: at each collective all wait for the slowest host.
    host_mixture_s : seconds that a mixture adds to a layer's forward: tokens are counted before they can be sent.
    step_overhead_s : seconds a step takes beside its layers: data, logging, launching the optimizer.
    """

    overlap_data_parallel: Share
    overlap_tensor_parallel: Share
    overlap_expert_parallel: Share
    sharding_efficiency: Annotated[Share, Field(gt=0)]
    kernel_share: Annotated[Share, Field(gt=0)]
    gradient_bytes: Annotated[float, Field(gt=0, le=16)]
    reduced_gradient_bytes: Annotated[float, Field(gt=0, le=16)]
    attention_share: Annotated[Share, Field(gt=0)]
    launch_share: Share
    collective_launch_s: Annotated[Seconds, Field(le=1.0)]
    host_layer_s: Annotated[Seconds, Field(le=1.0)]
    host_skew: Annotated[float, Field(ge=0, le=10)]
    host_mixture_s: Annotated[Seconds, Field(le=1.0)]
    step_overhead_s: Annotated[Seconds, Field(le=100.0)]


SET_BY_SOFTWARE = tuple(SoftwareConstants.model_fields)


class Assumptions(SoftwareConstants):
    """Constants of practice; what an instance does not state is taken from the catalogue, with its source.

    Those of the training software come first, see `SoftwareConstants`.

    Attributes
    ----------
    network_latency_s, network_efficiency : of a message between servers; share of the line rate that arrives.
    nvls, sharp : whether all-reduces use the switches of the domain, and of the network, where these can reduce.
    expert_imbalance : tokens of the busiest rank of experts over the mean.
    memory_reserved_bytes, memory_fragmentation : taken on every GPU; share added to all tensors.
    memory_band : share of the capacity below which a design that fits is called tight.
    weight_bytes, optimizer_bytes : bytes a parameter.
    failure_gpu_hours : GPU-hours between interruptions of one GPU.
    restart_s : seconds from a failure to reading the checkpoint.
    checkpoint_bytes_per_parameter, checkpoint_retained, storage_headroom : size and number kept; share left free.
    pue : power of the site over that of the equipment.
    electricity_usd_per_joule, depreciation_s, installation_fraction : money.
    bytes_per_token : of training data.
    """

    network_latency_s: Annotated[Seconds, Field(le=1.0)]
    network_efficiency: Annotated[Share, Field(gt=0)]
    nvls: bool
    sharp: bool
    expert_imbalance: Annotated[float, Field(ge=1, le=1000)]
    memory_reserved_bytes: Bytes
    memory_fragmentation: Share
    memory_band: Annotated[Share, Field(lt=1)]
    weight_bytes: Annotated[float, Field(gt=0, le=16)]
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


class Software(SoftwareConstants):
    """A generation of training software: how it works, and the assumptions that it sets.

    Attributes
    ----------
    framework, attention, sequence_parallel : as in a workload.
    interleaves : has an interleaved pipeline schedule.
    """

    name: Name
    framework: Literal["megatron", "torchtitan", "deepspeed"]
    attention: Literal["flash", "unfused"]
    sequence_parallel: bool
    interleaves: bool

    def assumptions(self) -> dict[str, float]:
        """The assumptions that it sets."""
        return {name: getattr(self, name) for name in SET_BY_SOFTWARE}
