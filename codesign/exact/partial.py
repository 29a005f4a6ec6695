"""A design as a user writes it -> what is stated of it, and where. Floor 4. In: a YAML or JSON file. Out: a `Partial`.

Three forms are read: a solution file (its design is taken), the `design` of `solve --json`, and the plain form of
`Design.to_document`. Any part may be missing; what stands there is read as strictly as an instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from codesign.design import DIMENSIONS, TIERS
from codesign.errors import Fault, SpecError
from codesign.spec.faults import faults_of, shown
from codesign.spec.source import MOST_BYTES, Source, read_yaml, spelt
from codesign.spec.source import Path as Place
from codesign.spec.stated import Listed, Seconds, Stated, whole
from codesign.spec.workload import ContextExchange, Recompute, Schedule, ShardWithin

Factor = Annotated[int, whole(1, 1 << 20)]
Word = Annotated[str, Field(max_length=100)]


class _Layout(Stated):
    domain: Factor | None = None
    leaf: Factor | None = None
    pod: Factor | None = None


class _Layouts(Stated):
    tp: _Layout = _Layout()
    cp: _Layout = _Layout()
    pp: _Layout = _Layout()
    dp: _Layout = _Layout()


class _Plan(Stated):
    tp: Factor | None = None
    cp: Factor | None = None
    ep: Factor | None = None
    pp: Factor | None = None
    dp: Factor | None = None
    virtual_stages: Factor | None = None
    micro_batch: Factor | None = None
    recompute: Recompute | None = None
    zero: Annotated[int, whole(0, 3)] | None = None
    schedule: Schedule | None = None
    shard_within: ShardWithin | None = None
    expert_tp: Factor | None = None
    context_exchange: ContextExchange | None = None


class _Network(Stated):
    kind: Literal["none", "rail-optimized", "fat-tree", "rail-only"] | None = None
    tiers: Annotated[int, whole(0, 3)] | None = None
    switch: Word | None = None
    oversubscription: Annotated[int, whole(1, 64)] | None = None
    nic: Word | None = None


class _Storage(Stated):
    product: Word | None = None
    units: Annotated[int, whole(0, 100_000)] | None = None


class _Purchase(Stated):
    network: _Network = _Network()
    storage: _Storage = _Storage()
    checkpoint_interval_s: Seconds | None = None


class _PlainPurchase(_Purchase):
    server: Word | None = None
    servers: Annotated[int, whole(1, 1 << 18)] | None = None


class _Plain(Stated):
    workload: Word | None = None
    plan: _Plan = _Plan()
    placement: _Layouts = _Layouts()
    purchase: _PlainPurchase = _PlainPurchase()


class _Counted(Stated):
    offer: Word | None = None
    count: Annotated[int, whole(1, 1 << 18)] | None = None


class _PrintedPurchase(_Purchase):
    """What `solve --json` prints; the bill, its sum and the power are computed again and not read."""

    servers: Annotated[Listed[_Counted], Field(max_length=1)] = ()
    bill_of_materials: Any = None
    capex_usd: Any = None
    power_w: Any = None


class _Printed(Stated):
    purchase: _PrintedPurchase = _PrintedPurchase()
    workloads: Any = None


class _PrintedPlacement(Stated):
    order: Literal["tp-cp-dp-pp"] = "tp-cp-dp-pp"
    layout: _Layouts = _Layouts()
    rank_map: Any = None


class _PrintedWorkload(Stated):
    plan: _Plan = _Plan()
    placement: _PrintedPlacement = _PrintedPlacement()


@dataclass(frozen=True)
class Partial:
    """What is stated of a design.

    Attributes
    ----------
    values : by the path of the plain form, such as `plan.tp`, `placement.dp.leaf`, `purchase.network.kind`.
    paths : the same paths -> where each stands, or would stand, in the file.
    """

    source: Source
    values: Mapping[str, Any]
    paths: Mapping[str, Place]

    def fault(self, name: str, found: str, expected: str, hint: str = "") -> Fault:
        """A fault of a part, at its place in the file."""
        return self.source.fault(self.paths[name], found, expected, hint)


def read_partial(path: Path | str) -> Partial:
    """Read a design file.

    Raises
    ------
    SpecError
        With every fault of the file, each with its line and column.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SpecError((Fault("", reason, "a design file that can be read", file=str(file)),)) from None
    return partial_of(read_yaml(content, str(file)))


def partial_of(source: Source) -> Partial:
    """What a document states of a design. SpecError as `read_partial`."""
    faults = list(source.faults)
    prefix: Place = ()
    inside = source.data
    if not isinstance(inside, dict):
        raise SpecError((source.fault((), shown(inside), "a mapping: a solution, or a design"),))
    if "design" in inside:
        if "schema" not in inside:  # a document of ours holds more, which is not read here
            others = [name for name in inside if name != "design"]
            faults += [source.fault((n,), f"'{n}'", "nothing beside 'design'", at_key=True) for n in others]
        inside, prefix = inside["design"], ("design",)
        if not isinstance(inside, dict):
            status = source.data.get("status")
            hint = f"the status of this solution is {status}" if isinstance(status, str) else ""
            raise SpecError((source.fault(prefix, shown(inside), "a design", hint),))
    purchase = inside.get("purchase")
    printed = "workloads" in inside or (isinstance(purchase, dict) and isinstance(purchase.get("servers"), list))
    found = list((_printed if printed else _plain)(source, prefix, faults))
    if faults:
        raise SpecError(sorted(faults, key=lambda fault: (fault.line or 0, fault.column or 0)))
    values = {name: value for name, value, _ in found if value is not None}
    return Partial(source, values, {name: place for name, _, place in found})


Part = tuple[str, Any, Place]


def _plain(source: Source, prefix: Place, faults: list[Fault]) -> Iterator[Part]:
    read = _validated(_Plain, source, prefix, faults)
    if read is None:
        return
    yield "workload", read.workload, (*prefix, "workload")
    yield from _of_plan(read.plan, (*prefix, "plan"))
    yield from _of_placement(read.placement, (*prefix, "placement"))
    purchase = (*prefix, "purchase")
    yield "purchase.server", read.purchase.server, (*purchase, "server")
    yield "purchase.servers", read.purchase.servers, (*purchase, "servers")
    yield from _of_purchase(read.purchase, purchase)


def _printed(source: Source, prefix: Place, faults: list[Fault]) -> Iterator[Part]:
    outer = _validated(_Printed, source, prefix, faults)
    name, inner = _workload(source, prefix, faults)
    if outer is None or inner is None:
        return
    place = (*prefix, "workloads") if name is None else (*prefix, "workloads", name)
    yield "workload", name, place
    yield from _of_plan(inner.plan, (*place, "plan"))
    yield from _of_placement(inner.placement.layout, (*place, "placement", "layout"))
    purchase = (*prefix, "purchase")
    counted = outer.purchase.servers[0] if outer.purchase.servers else _Counted()
    yield "purchase.server", counted.offer, (*purchase, "servers", 0, "offer")
    yield "purchase.servers", counted.count, (*purchase, "servers", 0, "count")
    yield from _of_purchase(outer.purchase, purchase)


def _workload(source: Source, prefix: Place, faults: list[Fault]) -> tuple[str | None, _PrintedWorkload | None]:
    """Name and content of the one workload of the printed form."""
    place = (*prefix, "workloads")
    stated = _at(source.data, prefix).get("workloads")
    if stated is None:
        return None, _PrintedWorkload()
    if not isinstance(stated, dict) or len(stated) != 1:
        names = ", ".join(list(stated)[:4]) if isinstance(stated, dict) and stated else shown(stated)
        faults.append(source.fault(place, names, "one workload, by its name"))
        return None, None
    (name,) = stated
    return name, _validated(_PrintedWorkload, source, (*place, name), faults)


def _of_plan(plan: _Plan, place: Place) -> Iterator[Part]:
    for name in type(plan).model_fields:
        yield f"plan.{name}", getattr(plan, name), (*place, name)


def _of_placement(layouts: _Layouts, place: Place) -> Iterator[Part]:
    for dimension in DIMENSIONS:
        for tier in TIERS:
            value = getattr(getattr(layouts, dimension), tier)
            yield f"placement.{dimension}.{tier}", value, (*place, dimension, tier)


def _of_purchase(purchase: _Purchase, place: Place) -> Iterator[Part]:
    for part in ("network", "storage"):
        stated = getattr(purchase, part)
        for name in type(stated).model_fields:
            yield f"purchase.{part}.{name}", getattr(stated, name), (*place, part, name)
    name = "checkpoint_interval_s"
    yield f"purchase.{name}", purchase.checkpoint_interval_s, (*place, name)


Model = TypeVar("Model", bound=BaseModel)


def _validated(model: type[Model], source: Source, prefix: Place, faults: list[Fault]) -> Model | None:
    """The part of a document below a path, checked; its faults keep their place and their full path."""
    depth = len(prefix)
    below = Source(
        source.name,
        _at(source.data, prefix),
        {path[depth:]: place for path, place in source.values.items() if path[:depth] == prefix},
        {path[depth:]: place for path, place in source.keys.items() if path[:depth] == prefix},
    )
    try:
        return model.model_validate(below.data)
    except ValidationError as problem:
        start = spelt(prefix)
        for fault in faults_of(problem, model, below):
            dot = "." if start and fault.path and not fault.path.startswith("[") else ""
            faults.append(replace(fault, path=f"{start}{dot}{fault.path}"))
        return None


def _at(data: Any, path: Place) -> Any:
    for part in path:
        data = data[part]
    return data
