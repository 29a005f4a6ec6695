"""Hardware as an instance states it: GPUs, servers, NICs, switches, links, storage. Floor 1. SI values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from codesign.spec.stated import (
    Bytes,
    BytesPerS,
    FlopPerS,
    Name,
    Seconds,
    Share,
    Stated,
    Usd,
    Watts,
    preset,
    refused,
    whole,
)
from codesign.units import QuantityError, quantity

Precision = Literal["bf16", "fp8", "mxfp8", "nvfp4"]
"""Format of the matrices: 16 bit (bf16, and fp16 at the same rate), 8 bit scaled by tensor, 8 and 4 bit by block."""

PEAK_OF: Mapping[Precision, Precision] = {"mxfp8": "fp8"}
"""Formats that run at the peak of another: scaling by block of 32 changes the kernels and not the rate of the units."""


class Efficiency(Stated):
    """Shares of the peaks that kernels reach, fitted to measured runs (see `codesign.cost.compute` for the curves).

    Attributes
    ----------
    matmul_ceiling, attention_ceiling, memory_ceiling : share of peak FLOP/s, and of memory bandwidth.
    matmul_ceiling_fp8, matmul_ceiling_mxfp8, matmul_ceiling_nvfp4 : shares of the peak of narrower formats; that of the
        next wider format where none is stated.
    grouped_ceiling, grouped_ceiling_narrow : rate of the grouped matrices of experts over that of plain ones of the
        same shape, in 16 bit and in narrower formats.
    sustained_clock : share of the clock of the peaks that is held under load, within the part's power.
    tokens_half, width_half : tokens and hidden width at which matrices reach half of their ceiling.
    launch_s : seconds a layer and micro-batch spends between kernels.
    """

    matmul_ceiling: Annotated[Share, Field(gt=0)]
    matmul_ceiling_fp8: Annotated[Share, Field(gt=0)] | None = None
    matmul_ceiling_mxfp8: Annotated[Share, Field(gt=0)] | None = None
    matmul_ceiling_nvfp4: Annotated[Share, Field(gt=0)] | None = None
    sustained_clock: Annotated[Share, Field(gt=0)] = 1.0
    grouped_ceiling: Annotated[Share, Field(gt=0)] = 1.0
    grouped_ceiling_narrow: Annotated[Share, Field(gt=0)] = 1.0
    attention_ceiling: Annotated[Share, Field(gt=0)]
    memory_ceiling: Annotated[Share, Field(gt=0)]
    tokens_half: Annotated[float, Field(ge=0, le=1e9)]
    width_half: Annotated[float, Field(ge=0, le=1e9)]
    launch_s: Annotated[Seconds, Field(le=1.0)]

    def ceiling(self, precision: Precision) -> float:
        """Share of the peak of a format that large matrices reach."""
        stated = {
            "bf16": self.matmul_ceiling,
            "fp8": self.matmul_ceiling_fp8,
            "mxfp8": self.matmul_ceiling_mxfp8,
            "nvfp4": self.matmul_ceiling_nvfp4,
        }
        wider: tuple[Precision, ...] = ("nvfp4", "mxfp8", "fp8", "bf16")
        return next(share for each in wider[wider.index(precision) :] if (share := stated[each]) is not None)


class Gpu(Stated):
    """A GPU. Bandwidths are for one direction; `domain_*` is the NVLink domain as one GPU sees it.

    `in_switch_efficiency` is the share of the domain's bandwidth that reductions inside its switches reach (NVLS); 0
    where they cannot reduce.
    """

    name: Name
    peak_flops: Mapping[Precision, FlopPerS]
    memory_bytes: Annotated[Bytes, Field(gt=0)]
    memory_bandwidth_bytes_per_s: BytesPerS
    domain_bandwidth_bytes_per_s: BytesPerS
    domain_latency_s: Annotated[Seconds, Field(le=1.0)]
    tdp_w: Watts | None = None
    in_switch_efficiency: Share = 0.0
    efficiency: Efficiency

    @field_validator("peak_flops")
    @classmethod
    def _has_bf16(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        if "bf16" not in value:
            raise refused("", "a peak for bf16, in which the attention core and the head run")
        return dict(value)

    def peak(self, precision: Precision) -> float:
        """Peak FLOP/s of a format, as stated. KeyError if the GPU does not have it."""
        return self.peak_flops[PEAK_OF.get(precision, precision)]

    def sustained(self, precision: Precision) -> float:
        """FLOP/s of a format at the clock that is held under load."""
        return self.peak(precision) * self.efficiency.sustained_clock

    def computes(self, precision: Precision) -> bool:
        """Whether it has units for the format."""
        return PEAK_OF.get(precision, precision) in self.peak_flops


class Server(Stated):
    """A server, or a rack that is bought as one: a single NVLink domain with its NICs.

    `price_usd` and `power_w` include the standard NICs; `rails` is the number of rails that the NICs belong to.
    """

    name: Name
    gpu: Annotated[Gpu, BeforeValidator(lambda value: preset("gpus", Gpu, value))]
    gpus: Annotated[int, whole(1, 1024)]
    nics: Annotated[int, whole(1, 1024)]
    nic_bandwidth_bytes_per_s: BytesPerS
    rails: Annotated[int, whole(1, 1024)]
    power_w: Watts
    price_usd: Usd | None = None
    storage_bandwidth_bytes_per_s: BytesPerS
    host_copy_bandwidth_bytes_per_s: BytesPerS


class Nic(Stated):
    """A network adapter."""

    name: Name
    bandwidth_bytes_per_s: BytesPerS
    price_usd: Usd
    power_w: Watts


class Switch(Stated):
    """A switch of the scale-out network; `ports` has the number of ports at each speed, such as `400Gb/s: 64`."""

    name: Name
    protocol: Literal["infiniband", "ethernet"]
    ports: Mapping[str, Annotated[int, whole(1, 65536)]]
    price_usd: Usd
    power_w: Watts
    latency_s: Annotated[Seconds, Field(le=1.0)]
    in_network_reduction: bool = False

    @field_validator("ports")
    @classmethod
    def _speeds(cls, value: Mapping[str, int]) -> Mapping[str, int]:
        for speed in value:
            try:
                quantity(speed, "bandwidth")
            except QuantityError as problem:
                raise refused(f"ports at '{speed}'", problem.expected, problem.hint) from None
        return dict(value)

    def ports_at(self, bandwidth_bytes_per_s: float) -> int:
        """Ports of that speed; 0 if it has none."""
        return next((n for speed, n in self.ports.items() if quantity(speed, "bandwidth") == bandwidth_bytes_per_s), 0)


class Link(Stated):
    """A cable with what stands at its ends: two transceivers, or copper."""

    name: Name
    bandwidth_bytes_per_s: BytesPerS
    price_usd: Usd
    power_w: Watts


class Storage(Stated):
    """One unit of a storage product."""

    name: Name
    capacity_bytes: Annotated[Bytes, Field(gt=0)]
    read_bytes_per_s: BytesPerS
    write_bytes_per_s: BytesPerS
    price_usd: Usd
    power_w: Watts


def _of(section: str, model: type[Stated]) -> Any:
    return BeforeValidator(lambda value: preset(section, model, value))


StatedServer = Annotated[Server, _of("servers", Server)]
StatedNic = Annotated[Nic, _of("nics", Nic)]
StatedSwitch = Annotated[Switch, _of("switches", Switch)]
StatedLink = Annotated[Link, _of("links", Link)]
StatedStorage = Annotated[Storage, _of("storage", Storage)]
"""A record in full, the name of one in the catalogue, or `{preset: name, ...}` with some fields replaced."""
