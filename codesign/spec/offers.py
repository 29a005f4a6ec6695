"""What can be bought, and what is owned already. Floor 1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from codesign import catalogue
from codesign.spec.hardware import (
    Link,
    Nic,
    Server,
    StatedLink,
    StatedNic,
    StatedServer,
    StatedStorage,
    StatedSwitch,
    Storage,
    Switch,
)
from codesign.spec.stated import PRESET, Listed, OneOrMore, Stated, whole

FabricKind = Literal["rail-optimized", "fat-tree", "rail-only"]

STORAGE_UNITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Units of a storage product to choose from, where an instance does not state them."""


def _all(section: str, model: type[Stated], priced: bool = False) -> tuple[Any, ...]:
    """All records of a section of the catalogue; with `priced`, those that have a price."""
    known = catalogue.load()
    records = [known.values(section, name) for name in known.names(section)]
    return tuple(_offered(model, each) for each in records if not priced or "price_usd" in each)


def _offered(model: type[Stated], values: dict[str, Any]) -> Stated:
    if "gpu" in values:
        values = values | {"gpu": catalogue.load().values("gpus", values["gpu"])}
    return model.model_validate(values)


def all_switches() -> tuple[Switch, ...]:
    """The switches of the catalogue."""
    return _all("switches", Switch)


class Fabrics(Stated):
    """Networks to choose from."""

    kinds: Listed[FabricKind] = ("rail-optimized", "fat-tree", "rail-only")
    oversubscription: OneOrMore[Annotated[int, whole(1, 64)]] = (1, 2, 4)
    switches: Listed[StatedSwitch] = Field(default_factory=partial(_all, "switches", Switch))
    links: Listed[StatedLink] = Field(default_factory=partial(_all, "links", Link))


class StorageOffer(Stated):
    """A storage product and the numbers of units of it to choose from."""

    product: StatedStorage
    units: OneOrMore[Annotated[int, whole(1, 100_000)]] = STORAGE_UNITS


def _storage_offer(value: Any) -> Any:
    """A product by its name or its own fields is an offer of it."""
    if isinstance(value, str) or (isinstance(value, Mapping) and (PRESET in value or "capacity" in value)):
        return {"product": value}
    return value


def _every_storage() -> tuple[StorageOffer, ...]:
    return tuple(StorageOffer(product=each) for each in _all("storage", Storage))


class Offers(Stated):
    """What can be bought; by default everything in the catalogue that has a price."""

    servers: Listed[StatedServer] = Field(default_factory=partial(_all, "servers", Server, priced=True))
    nics: Listed[StatedNic] = Field(default_factory=partial(_all, "nics", Nic))
    fabrics: Fabrics = Field(default_factory=Fabrics)
    storage: Listed[Annotated[StorageOffer, BeforeValidator(_storage_offer)]] = Field(default_factory=_every_storage)


NOTHING = {
    "servers": [],
    "nics": [],
    "fabrics": {"kinds": [], "oversubscription": [1], "switches": [], "links": []},
    "storage": [],
}


def offers_of(value: Any) -> Any:
    """`none` is an offer of nothing."""
    return NOTHING if value == "none" else value


class Owned(Stated):
    """Servers that stand there already, with their network and storage: price zero, a fixed number.

    `fabric` and `switch` state the network that joins them; without these a network is bought from the offers.
    """

    server: StatedServer
    count: Annotated[int, whole(1, 1 << 18)]
    nic: StatedNic | None = None
    fabric: FabricKind | None = None
    oversubscription: Annotated[int, whole(1, 64)] = 1
    switch: StatedSwitch | None = None
    storage: StatedStorage | None = None
    storage_units: Annotated[int, whole(1, 100_000)] = 1
