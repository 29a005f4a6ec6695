"""An instance: everything that the user states, read strictly, kept with its places. Floor 1.

In: a file, text, or the document of a solution. Out: a frozen `Instance`, or `SpecError` with every fault.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from codesign import catalogue
from codesign.errors import Fault, SpecError
from codesign.spec import overrides as overriding
from codesign.spec.faults import faults_of, shown, spelling
from codesign.spec.limits import Assumptions, Limits, Objective
from codesign.spec.offers import Offers, Owned, offers_of
from codesign.spec.source import MOST_BYTES, Source, read_yaml
from codesign.spec.stated import Listed, Name, Stated, named
from codesign.spec.workload import Workload

NEED_TOKENS = ("time_to_train", "total_cost", "tokens_per_usd")
"""Objectives of a whole run."""
FASTER_IS_BETTER = ("time_to_train", "step_time", "tokens_per_s")
"""Objectives that more hardware always improves: something must limit it."""


def _assumptions(value: Any) -> Any:
    """What is stated over what the catalogue has."""
    if isinstance(value, Mapping):
        return catalogue.load().values("assumptions", "default") | named(Assumptions, value)
    return value


def _every_assumption() -> Assumptions:
    return Assumptions.model_validate(catalogue.load().values("assumptions", "default"))


class Instance(Stated):
    """What the user states.

    Attributes
    ----------
    workloads : one, in this version.
    offers, inventory : what can be bought, what is owned.
    limits, objective : what a design may take, and what is best.
    assumptions : constants of practice, from the catalogue where the instance states none.
    """

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    workloads: Annotated[Listed[Workload], Field(min_length=1, max_length=1)]
    offers: Annotated[Offers, BeforeValidator(offers_of)] = Field(default_factory=Offers)
    inventory: Listed[Owned] = ()
    limits: Limits = Limits()
    objective: Objective = "time_to_train"
    assumptions: Annotated[Assumptions, BeforeValidator(_assumptions)] = Field(default_factory=_every_assumption)

    _source: Source | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def fault(self, path: str, found: str, expected: str, hint: str = "") -> Fault:
        """A fault of a field, with its place in the file that the instance was read from.

        Parameters
        ----------
        path : names and positions with dots between them, such as `workloads.0.plan.tp`.
        """
        parts = tuple(int(part) if part.isdigit() else part for part in path.split("."))
        source = self._source or Source(self.name)
        return source.fault(spelling(parts, Instance, source.data), found, expected, hint)

    def to_document(self) -> dict[str, Any]:
        """JSON-able form with every figure in SI; `from_document` reads it back exactly."""
        document = self.model_dump(mode="json")
        del document["schema_version"]
        return {"schema": self.schema_version, **document}

    @staticmethod
    def from_document(document: Mapping[str, Any], overrides: Sequence[str] = ()) -> Instance:
        """The instance that `to_document` wrote, with fields replaced as `--set` does. SpecError if it is none."""
        source = Source("the instance of the solution", json.loads(json.dumps(document)))
        overriding.apply(source, overrides)
        return _checked(source, None)

    def digest(self) -> str:
        """SHA-256 over all that is stated."""
        text = json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


def read(path: Path | str, overrides: Sequence[str] = ()) -> Instance:
    """Read an instance file.

    Parameters
    ----------
    path : a YAML (or JSON) file.
    overrides : fields to replace, each as `path=value`, such as `limits.capex=$40M`.

    Raises
    ------
    SpecError
        With every fault of the file, each with its line and column.
    """
    file = Path(path)
    try:
        if not file.is_file():
            what = "a folder" if file.is_dir() else "nothing of that name" if not file.exists() else "no regular file"
            raise SpecError((Fault("", what, "an instance file", file=str(file)),))
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SpecError((Fault("", reason, "a file that can be read", file=str(file)),)) from None
    return _read(content, str(file), file.parent, overrides)


def parse(text: str, name: str = "<text>", folder: Path | None = None, overrides: Sequence[str] = ()) -> Instance:
    """Read an instance from text; `folder` is where paths to model configurations start. SpecError as `read`."""
    return _read(text.encode("utf-8", "surrogatepass"), name, folder, overrides)


def _read(content: bytes, name: str, folder: Path | None, overrides: Sequence[str]) -> Instance:
    source = read_yaml(content, name)
    if not isinstance(source.data, dict):
        found = shown(source.data)
        raise SpecError((source.fault((), found, "a mapping of fields", "an instance begins with 'schema: 1'"),))
    overriding.apply(source, overrides)
    return _checked(source, folder)


def _checked(source: Source, folder: Path | None) -> Instance:
    faults = list(source.faults)
    try:
        instance = Instance.model_validate(source.data, context={"folder": folder})
    except ValidationError as problem:
        faults += faults_of(problem, Instance, source)
        raise SpecError(_in_order(faults)) from None
    instance = _of_precision(instance)
    instance._source = source  # noqa: SLF001 - the place of its own values; frozen for everybody else
    faults += _contradictions(instance)
    if faults:
        raise SpecError(_in_order(faults))
    return instance


def _of_precision(instance: Instance) -> Instance:
    """Without the default servers whose GPUs do not have the stated precision; what is named is left for a fault."""
    offers, precision = instance.offers, instance.workloads[0].precision
    if "servers" in offers.model_fields_set:
        return instance
    servers = tuple(each for each in offers.servers if precision in each.gpu.peak_flops)
    if len(servers) == len(offers.servers):
        return instance
    return instance.model_copy(update={"offers": offers.model_copy(update={"servers": servers})})


def _in_order(faults: Sequence[Fault]) -> list[Fault]:
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda fault: (fault.line or 0, fault.column or 0))


# ------------------------------------------------------------------------------------- what fields say together


def _contradictions(instance: Instance) -> Iterator[Fault]:
    yield from _of_objective(instance)
    yield from _of_hardware(instance)
    yield from _of_inventory(instance)


def _of_objective(instance: Instance) -> Iterator[Fault]:
    workload, limits, objective = instance.workloads[0], instance.limits, instance.objective
    if workload.tokens is None and objective in NEED_TOKENS:
        yield instance.fault(
            "workloads.0",
            "no 'tokens'",
            f"the tokens of the run, which {objective} needs",
            "such as tokens: 1.5T",
        )
    if workload.tokens is None and limits.deadline_s is not None:
        yield instance.fault(
            "limits.deadline", "a deadline, but no 'tokens'", "the tokens of the run", "such as tokens: 1.5T"
        )
    if objective == "total_cost" and limits.deadline_s is None:
        yield instance.fault(
            "objective",
            "total_cost without a deadline",
            "limits.deadline",
            "the cheapest run alone is one GPU for centuries",
        )
    buys = bool(instance.offers.servers)
    bounded = limits.capex_usd is not None or limits.power_w is not None or limits.gpus is not None
    if buys and objective in FASTER_IS_BETTER and not bounded:
        yield instance.fault(
            "limits",
            "no limit on money, power or GPUs",
            f"at least one of capex, power, gpus for the objective {objective}",
            "servers can be bought, and more of them are always faster; for what is owned alone state offers: none",
        )


def _of_hardware(instance: Instance) -> Iterator[Fault]:
    precision = instance.workloads[0].precision
    if not instance.offers.servers and not instance.inventory:
        yield instance.fault("offers", "no server", "a server that is offered or owned")
    for index, server in enumerate(instance.offers.servers):
        path = f"offers.servers.{index}"
        if server.price_usd is None:
            yield instance.fault(
                path,
                f"{server.name}, which has no price",
                "a price",
                f"{{preset: {server.name}, price: $250k}} states one",
            )
        if precision not in server.gpu.peak_flops and "servers" in instance.offers.model_fields_set:
            yield instance.fault(
                path, f"{server.name}, whose {server.gpu.name} has no {precision}", f"a GPU with {precision}"
            )
        yield from _rails(instance, path, server.nics, server.rails)
    for index, item in enumerate(instance.inventory):
        if precision not in item.server.gpu.peak_flops:
            yield instance.fault(
                f"inventory.{index}.server",
                f"{item.server.name}, whose {item.server.gpu.name} has no {precision}",
                f"a GPU with {precision}",
            )
        yield from _rails(instance, f"inventory.{index}.server", item.server.nics, item.server.rails)
    for path, names in (
        ("offers.servers", [each.name for each in instance.offers.servers]),
        ("offers.nics", [each.name for each in instance.offers.nics]),
        ("offers.fabrics.switches", [each.name for each in instance.offers.fabrics.switches]),
        ("offers.fabrics.links", [each.name for each in instance.offers.fabrics.links]),
        ("offers.storage", [each.product.name for each in instance.offers.storage]),
        ("inventory", [each.server.name for each in instance.inventory]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield instance.fault(
                    f"{path}.{index}",
                    f"'{name}' a second time",
                    "each name once",
                    "give one of them another name",
                )


def _rails(instance: Instance, path: str, nics: int, rails: int) -> Iterator[Fault]:
    if nics % rails:
        yield instance.fault(path, f"{nics} NICs on {rails} rails", "rails that divide the NICs")


def _of_inventory(instance: Instance) -> Iterator[Fault]:
    fabrics = instance.offers.fabrics
    bought = fabrics.kinds and fabrics.switches and fabrics.links
    for index, item in enumerate(instance.inventory):
        path = f"inventory.{index}"
        if (item.fabric is None) != (item.switch is None):
            missing = "switch" if item.switch is None else "fabric"
            yield instance.fault(path, f"no '{missing}'", "fabric and switch together, or neither")
        elif item.count > 1 and item.fabric is None and not bought:
            yield instance.fault(
                path,
                f"{item.count} servers and no network",
                "fabric and switch of the inventory, or fabrics that are offered",
            )
        known = {each.name: each for each in instance.offers.servers}.get(item.server.name)
        if known is not None and known.model_copy(update={"price_usd": item.server.price_usd}) != item.server:
            yield instance.fault(
                f"{path}.server",
                f"'{item.server.name}' that differs from the one offered",
                "another name for it",
            )
        if item.nic is not None and item.nic.bandwidth_bytes_per_s > item.server.nic_bandwidth_bytes_per_s:
            yield instance.fault(
                f"{path}.nic",
                f"{item.nic.name}, faster than the slots of {item.server.name}",
                "a NIC up to the speed of the server's own",
            )
        if item.switch is not None:
            speed = item.nic.bandwidth_bytes_per_s if item.nic is not None else item.server.nic_bandwidth_bytes_per_s
            if not item.switch.ports_at(speed):
                yield instance.fault(
                    f"{path}.switch",
                    f"{item.switch.name}, without ports of {speed * 8 / 1e9:g}Gb/s",
                    "a switch with ports at the speed of the NICs",
                )
