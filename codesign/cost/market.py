"""What can be bought or is owned, what it costs, and which parts go together. Floor 3.

In: an instance. Out: options for servers, networks and storage; `lines`, the bill of materials of any purchase, for
one count of servers or an array of them; and the relations between server, number of servers, network and storage.
Prices, watts and switch counts come from these lines only, in the tables of the model as in the bill that a user reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from codesign.cost import architecture, collectives, fabric, reliability
from codesign.design import Network, Purchase, StoragePurchase
from codesign.errors import SpecError
from codesign.expr import Decision, Relation, Space
from codesign.spec.hardware import Link, Nic, Server, Storage, Switch
from codesign.spec.instance import Instance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CEILING_GPUS = 16384
"""The space holds no design with more GPUs than this, unless the instance states `limits.gpus`."""

NO_NETWORK = Network("none", 0, "", 1, "")


@dataclass(frozen=True)
class Line:
    """One line of a bill of materials, for each entry of an array of server counts."""

    item: str
    count: Ints
    unit_usd: float
    unit_w: float


@dataclass(frozen=True)
class ServerOption:
    """A server type: how many are owned, whether more can be bought, and the most that limits leave room for."""

    server: Server
    owned: int
    most: int
    offered: bool = True


@dataclass(frozen=True)
class NetworkOption:
    """A network: its parts, and for how many servers it is owned already (0: it is bought)."""

    network: Network
    nic: Nic | None
    switch: Switch | None
    link: Link | None
    owned_servers: int = 0


@dataclass(frozen=True)
class StorageOption:
    """Units of a storage product; no product at all if the instance has none."""

    purchase: StoragePurchase
    product: Storage | None
    owned: bool = False


@dataclass(frozen=True)
class Counted:
    """Switches and links of a network for an array of server counts, and how servers are grouped under leaves."""

    feasible: npt.NDArray[np.bool_]
    leaf_block: Ints
    switches: Ints
    links: Ints


class Market:
    """The options of an instance under its limits."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.limits = instance.limits
        self.assumptions = instance.assumptions
        self.servers = tuple(self._server_options())
        self.networks = tuple(self._network_options())
        self.storages = tuple(self._storage_options())
        model = instance.workloads[0].model
        self.checkpoint_bytes = architecture.total_parameters(model) * self.assumptions.checkpoint_bytes_per_parameter

    # -- options

    def _server_options(self) -> Iterable[ServerOption]:
        limits, offered = self.limits, {server.name: server for server in self.instance.offers.servers}
        owned = {item.server.name: item for item in self.instance.inventory}
        # More of an owned type are bought at the price of the offer; what the inventory says of a price is of no use.
        for name, server in (offered | {n: item.server for n, item in owned.items() if n not in offered}).items():
            count = owned[name].count if name in owned else 0
            ceiling = limits.gpus if limits.gpus is not None else CEILING_GPUS
            most = ceiling // server.gpus
            if name not in offered:
                most = min(most, count)
            elif limits.capex_usd is not None and server.price_usd:
                most = min(most, count + int(limits.capex_usd // server.price_usd))
            if limits.power_w is not None and server.power_w:
                most = min(most, int(limits.power_w // (server.power_w * self.assumptions.pue)))
            yield ServerOption(server, count, most, name in offered)

    def _network_options(self) -> Iterable[NetworkOption]:
        yield NetworkOption(NO_NETWORK, None, None, None)
        owned: dict[Network, NetworkOption] = {}
        for item in self.instance.inventory:
            if item.fabric is not None and item.switch is not None:
                nic = item.nic or _standard_nic(item.server)
                for tiers in fabric.TIERS:
                    network = Network(item.fabric, tiers, item.switch.name, item.oversubscription, nic.name)
                    # A design names a network by its parts, so of two owned ones alike only the larger can be meant.
                    if network not in owned or owned[network].owned_servers < item.count:
                        owned[network] = NetworkOption(network, nic, item.switch, None, owned_servers=item.count)
        yield from owned.values()
        fabrics = self.instance.offers.fabrics
        for nic in self._nics():
            link = _cheapest_link(fabrics.links, nic)
            if link is None:
                continue
            for switch in fabrics.switches:
                if not switch.ports_at(nic.bandwidth_bytes_per_s):
                    continue
                for kind in fabrics.kinds:
                    for tiers in fabric.TIERS:
                        for ratio in fabrics.oversubscription if tiers > 1 else (1,):
                            network = Network(kind, tiers, switch.name, ratio, nic.name)
                            yield NetworkOption(network, nic, switch, link)

    def _nics(self) -> tuple[Nic, ...]:
        """Offered NICs; a server's own fit counts as offered when no NIC of that speed is."""
        nics = {nic.bandwidth_bytes_per_s: nic for nic in reversed(self.instance.offers.nics)}
        for option in self.servers:
            own = _standard_nic(option.server)
            nics.setdefault(own.bandwidth_bytes_per_s, own)
        return tuple(nics[speed] for speed in sorted(nics))

    def _storage_options(self) -> Iterable[StorageOption]:
        found = {
            option.purchase: option
            for offer in self.instance.offers.storage
            for units in offer.units
            for option in [StorageOption(StoragePurchase(offer.product.name, units), offer.product)]
        }
        for item in self.instance.inventory:
            if item.storage is not None:  # what is owned need not be bought: one option of that name and size
                purchase = StoragePurchase(item.storage.name, item.storage_units)
                found[purchase] = StorageOption(purchase, item.storage, owned=True)
        return list(found.values()) or [StorageOption(StoragePurchase("", 0), None)]

    def rates(self, option: ServerOption, network: NetworkOption) -> collectives.TierRates:
        """What one rank of a server gets at each tier of a network."""
        return collectives.tier_rates(
            option.server,
            network.nic,
            network.switch,
            network.network.tiers,
            network.network.oversubscription,
            self.assumptions,
        )

    # -- counting

    def counted(self, option: NetworkOption, server: Server, servers: npt.ArrayLike) -> Counted:
        """Switches and links for each number of servers; equally many servers stand under each leaf group.

        Where the servers do not divide into the least number of leaf groups, the next larger number that they divide
        into is built, whole groups of switches at a time.
        """
        n = np.asarray(servers, dtype=np.int64)
        if option.switch is None or option.nic is None:
            none = np.zeros_like(n)
            return Counted(n == 1, np.ones_like(n), none, none)
        ports = option.switch.ports_at(option.nic.bandwidth_bytes_per_s)
        rails = server.rails if server.nics % server.rails == 0 else server.nics

        def count(nodes: Ints) -> fabric.FabricCounts:
            return fabric.count(
                nodes,
                kind=option.network.kind,  # type: ignore[arg-type]
                switch_ports=ports,
                rails=rails,
                tiers=option.network.tiers,
                oversubscription=option.network.oversubscription,
                ports_per_rail=server.nics // rails,
            )

        least = count(n)
        groups = np.ones_like(n) if option.network.tiers == 1 else _dividing_groups(n, -(-n // least.leaf_nodes))
        spread = groups > -(-n // least.leaf_nodes)
        built = count(np.where(spread, np.minimum(groups * least.leaf_nodes, np.maximum(least.limit_nodes, 1)), n))
        feasible = least.feasible & built.feasible & (~spread | (groups * least.leaf_nodes <= least.limit_nodes))
        return Counted(
            feasible,
            n // groups,
            np.where(feasible, built.switches, 0),
            np.where(feasible, least.host_links + built.switch_links, 0),
        )

    def lines(
        self, option: ServerOption, network: NetworkOption, storage: StorageOption, servers: npt.ArrayLike
    ) -> tuple[Line, ...]:
        """Bill of materials for each number of servers. What is owned has the price zero but draws its power."""
        return (
            *self.server_lines(option, network, servers),
            *self.network_lines(option, network, servers),
            *self.storage_lines(storage, servers),
        )

    def server_lines(self, option: ServerOption, network: NetworkOption, servers: npt.ArrayLike) -> tuple[Line, ...]:
        """Servers, and the price difference of NICs that are not the server's standard fit."""
        n, server = np.asarray(servers, dtype=np.int64), option.server
        price, power = server.price_usd or 0.0, server.power_w or 0.0
        found = [Line(server.name, np.maximum(n - option.owned, 0), price, power)]
        if option.owned:
            found.insert(0, Line(f"{server.name} (owned)", np.minimum(n, option.owned), 0.0, power))
        nic = network.nic
        if (
            nic is not None
            and not network.owned_servers
            and nic.bandwidth_bytes_per_s != server.nic_bandwidth_bytes_per_s
        ):
            standard = [
                one
                for one in self.instance.offers.nics
                if one.bandwidth_bytes_per_s == server.nic_bandwidth_bytes_per_s
            ]
            found.append(Line(f"{nic.name} (NIC)", n * server.nics, nic.price_usd, nic.power_w))
            if standard:
                own = standard[0]
                found.append(
                    Line(f"{own.name} (NIC, left out of the server)", n * server.nics, -own.price_usd, -own.power_w)
                )
        return tuple(found)

    def network_lines(self, option: ServerOption, network: NetworkOption, servers: npt.ArrayLike) -> tuple[Line, ...]:
        """Switches and links of the compute network."""
        if network.switch is None:
            return ()
        counted = self.counted(network, option.server, servers)
        owned = network.owned_servers > 0
        suffix = " (owned)" if owned else ""
        found = [
            Line(
                network.switch.name + suffix,
                counted.switches,
                0.0 if owned else network.switch.price_usd,
                network.switch.power_w,
            )
        ]
        if network.link is not None:
            found.append(Line(network.link.name, counted.links, network.link.price_usd, network.link.power_w))
        return tuple(found)

    def storage_lines(self, storage: StorageOption, servers: npt.ArrayLike) -> tuple[Line, ...]:
        """Storage units."""
        if storage.product is None:
            return ()
        units = np.full(np.shape(servers), storage.purchase.units, dtype=np.int64)
        name = storage.product.name + (" (owned)" if storage.owned else "")
        return (Line(name, units, 0.0 if storage.owned else storage.product.price_usd, storage.product.power_w),)

    # -- relations

    def decisions(self, counts: Sequence[int]) -> Space:
        """The decisions of the purchase, for the given candidate numbers of servers."""
        blocks = {1}
        for option in self.servers:
            for network in self.networks:
                counted = self.counted(network, option.server, np.asarray(counts))
                blocks.update(int(block) for block in np.unique(counted.leaf_block[counted.feasible]))
        return Space(
            [
                Decision("server", tuple(option.server.name for option in self.servers)),
                Decision("servers", tuple(counts)),
                Decision("network", tuple((o.network, o.owned_servers) for o in self.networks)),
                Decision("leaf_block", tuple(sorted(blocks))),
                Decision("storage", tuple((o.purchase, o.owned) for o in self.storages)),
                Decision("checkpoint_interval", self._intervals()),
            ]
        )

    def _intervals(self) -> tuple[float, ...]:
        return reliability.INTERVALS_S if self.storages[0].product is not None else (0.0,)

    def hardware(self, space: Space) -> Relation:
        """Which server type, number, network and leaf block go together.

        A server takes NICs up to the speed of its standard fit (what its slots carry). A fabric reaches the servers
        with as few tiers of switches as can be.
        """
        counts = np.asarray(space["servers"].values, dtype=np.int64)
        blocks = np.asarray(space["leaf_block"].values, dtype=np.int64)
        columns: dict[str, list[npt.NDArray[np.intp]]] = {n: [] for n in ("server", "servers", "network", "leaf_block")}
        for kind, option in enumerate(self.servers):
            reached: dict[tuple[str, str, int, str, int], npt.NDArray[np.bool_]] = {}
            for code, network in enumerate(self.networks):
                net = network.network
                key = (
                    net.kind,
                    net.switch,
                    net.oversubscription if net.tiers > 1 else 0,
                    net.nic,
                    network.owned_servers,
                )
                counted = self.counted(network, option.server, counts)
                keep = counted.feasible & (counts <= option.most)
                if network.owned_servers:
                    keep &= counts <= network.owned_servers
                else:
                    keep &= counts > self._owned_for(net)
                if network.nic is not None:
                    keep &= network.nic.bandwidth_bytes_per_s <= option.server.nic_bandwidth_bytes_per_s
                simpler = reached.get((*key[:2], 0, *key[3:]), np.zeros_like(keep)) | reached.get(
                    key, np.zeros_like(keep)
                )
                if net.kind != "none":
                    keep &= (counts > 1) & ~simpler
                reached[key] = simpler | counted.feasible
                found = np.flatnonzero(keep)
                columns["server"].append(np.full(len(found), kind, dtype=np.intp))
                columns["servers"].append(found.astype(np.intp))
                columns["network"].append(np.full(len(found), code, dtype=np.intp))
                columns["leaf_block"].append(np.searchsorted(blocks, counted.leaf_block[found]).astype(np.intp))
        return Relation("hardware", {name: np.concatenate(parts) for name, parts in columns.items()})

    def storage(self, space: Space) -> Relation:
        """Storage that can hold the checkpoints, each with the interval that costs the run least.

        The interval touches nothing but the overhead, so the best one for given servers and storage is best in any
        design; the others are left out.
        """
        counts = np.asarray(space["servers"].values, dtype=np.int64)
        columns: dict[str, list[npt.NDArray[np.intp]]] = {
            n: [] for n in ("server", "servers", "storage", "checkpoint_interval")
        }
        for kind, option in enumerate(self.servers):
            for code, storage in enumerate(self.storages):
                if not self.holds_checkpoints(storage):
                    continue
                overheads = self.overhead(option, storage, counts[:, None], np.asarray(self._intervals())[None, :])
                best = np.argmin(overheads, axis=1)
                keep = np.isfinite(overheads[np.arange(len(counts)), best]) & (counts <= option.most)
                found = np.flatnonzero(keep)
                columns["server"].append(np.full(len(found), kind, dtype=np.intp))
                columns["servers"].append(found.astype(np.intp))
                columns["storage"].append(np.full(len(found), code, dtype=np.intp))
                columns["checkpoint_interval"].append(best[found].astype(np.intp))
        empty = np.zeros(0, dtype=np.intp)
        return Relation("storage", {name: np.concatenate([empty, *parts]) for name, parts in columns.items()})

    def holds_checkpoints(self, storage: StorageOption) -> bool:
        """Whether the retained checkpoints fit with the stated headroom; true where there is no storage at all."""
        if storage.product is None:
            return True
        room = storage.purchase.units * storage.product.capacity_bytes * (1.0 - self.assumptions.storage_headroom)
        return bool(self.assumptions.checkpoint_retained * self.checkpoint_bytes <= room)

    def save_s(self, option: ServerOption, storage: StorageOption, servers: npt.ArrayLike) -> Floats:
        """Seconds to write a checkpoint."""
        assert storage.product is not None
        n = np.asarray(servers, dtype=np.float64)
        return reliability.save_s(
            self.checkpoint_bytes,
            storage.purchase.units * storage.product.write_bytes_per_s,
            n * option.server.storage_bandwidth_bytes_per_s,
            n * option.server.gpus * option.server.host_copy_bandwidth_bytes_per_s,
        )

    def load_s(self, option: ServerOption, storage: StorageOption, servers: npt.ArrayLike) -> Floats:
        """Seconds to read a checkpoint back."""
        assert storage.product is not None
        return reliability.save_s(
            self.checkpoint_bytes,
            storage.purchase.units * storage.product.read_bytes_per_s,
            np.asarray(servers, dtype=np.float64) * option.server.storage_bandwidth_bytes_per_s,
        )

    def overhead(
        self, option: ServerOption, storage: StorageOption, servers: npt.ArrayLike, interval_s: npt.ArrayLike
    ) -> Floats:
        """Wall-clock seconds a second of work. Exactly 1 where the instance has no storage: without failures then."""
        if storage.product is None:
            return np.ones(np.broadcast_shapes(np.shape(servers), np.shape(interval_s)))
        gpus = np.asarray(servers, dtype=np.float64) * option.server.gpus
        return reliability.overhead(
            interval_s,
            self.save_s(option, storage, servers),
            self.assumptions.restart_s + self.load_s(option, storage, servers),
            reliability.mean_time_to_interruption_s(self.assumptions.failure_gpu_hours, gpus),
        )

    def read_bytes_per_s(self, option: ServerOption, storage: StorageOption, servers: npt.ArrayLike) -> Floats:
        """Rate at which all servers together can read training data."""
        n = np.asarray(servers, dtype=np.float64)
        if storage.product is None:
            return np.full(np.shape(servers), np.inf)
        return np.asarray(
            np.minimum(
                storage.purchase.units * storage.product.read_bytes_per_s,
                n * option.server.storage_bandwidth_bytes_per_s,
            )
        )

    # -- looking up a purchase by its names

    def _owned_for(self, network: Network) -> int:
        """For how many servers a network of these parts is owned."""
        return max((o.owned_servers for o in self.networks if o.network == network), default=0)

    def _network(self, network: Network, servers: int) -> NetworkOption | None:
        """The owned network of these parts as far as it reaches, beyond that the bought one, if it is offered."""
        alike = sorted((o for o in self.networks if o.network == network), key=lambda o: -o.owned_servers)
        reaching = [o for o in alike if not o.owned_servers or o.owned_servers >= servers]
        return next(iter([*reaching, *alike]), None)

    def find(self, purchase: Purchase) -> tuple[ServerOption, NetworkOption, StorageOption]:
        """The options that a purchase names.

        Raises
        ------
        SpecError
            If the instance neither offers nor owns one of them.
        """
        option = next((o for o in self.servers if o.server.name == purchase.server), None)
        network = self._network(purchase.network, purchase.servers)
        storage = next((o for o in self.storages if o.purchase == purchase.storage), None)
        faults = [
            self.instance.fault(
                "offers",
                found=f"a design with {what} {which}",
                expected="one that the instance offers or owns",
                hint="add it to offers or inventory, or change the design",
            )
            for what, which, got in (
                ("server", purchase.server, option),
                ("network", purchase.network, network),
                ("storage", purchase.storage, storage),
            )
            if got is None
        ]
        if faults or option is None or network is None or storage is None:
            raise SpecError(tuple(faults))
        return option, network, storage


def _standard_nic(server: Server) -> Nic:
    """The NIC that comes with a server, at no price of its own."""
    return Nic(
        name=f"{server.name} standard NIC",
        bandwidth_bytes_per_s=server.nic_bandwidth_bytes_per_s,
        price_usd=0.0,
        power_w=0.0,
    )


def _cheapest_link(links: Sequence[Link], nic: Nic) -> Link | None:
    fitting = [link for link in links if link.bandwidth_bytes_per_s == nic.bandwidth_bytes_per_s]
    return min(fitting, key=lambda link: (link.price_usd, link.power_w, link.name), default=None)


def _dividing_groups(servers: Ints, least: Ints) -> Ints:
    """Least number of equal groups that is at least `least` and divides the servers."""
    pairs = np.stack([servers.reshape(-1), np.maximum(least, 1).reshape(-1)], axis=1)
    return np.array([_next_divisor(int(n), int(g)) for n, g in pairs], dtype=np.int64).reshape(servers.shape)


@lru_cache(maxsize=65536)
def _next_divisor(number: int, least: int) -> int:
    return next((g for g in range(least, number + 1) if number % g == 0), number)
