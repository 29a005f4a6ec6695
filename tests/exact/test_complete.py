"""Designs of a user's own: read strictly, completed where nothing is left to decide, asked for where something is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codesign import evaluate, parse, read, solve
from codesign.design.solution import Solution
from codesign.errors import SpecError
from codesign.exact.complete import Completed, complete, read_design
from codesign.exact.partial import Partial, partial_of
from codesign.export.files import write
from codesign.spec.instance import Instance
from codesign.spec.source import read_yaml

ROOT = Path(__file__).parents[2]
OWNED = """
schema: 1
name: owned
workloads:
  - {model: llama-3.1-8b, sequence_length: 8192, global_batch: 32, tokens: 10B}
offers: none
inventory:
  - {server: hgx-h100, count: 2, fabric: fat-tree, switch: quantum2-qm9700}
objective: step_time
"""
OFFERED = """
schema: 1
name: offered
workloads:
  - {model: llama-3.1-8b, sequence_length: 8192, global_batch: 64, tokens: 10B}
offers:
  servers: [hgx-h100, dgx-b200]
  fabrics: {kinds: [rail-optimized, rail-only], switches: [quantum2-qm9700]}
  storage: [{product: weka-pod8, units: [1, 2]}]
limits: {capex: $3M}
objective: step_time
"""
PLAN = "{tp: 2, cp: 1, pp: 1, dp: 8, micro_batch: 1, recompute: none, zero: 1}"
LAYOUT = "{tp: {domain: 2}}"


@pytest.fixture(scope="module")
def owned() -> Instance:
    return parse(OWNED)


@pytest.fixture(scope="module")
def offered() -> Instance:
    return parse(OFFERED)


@pytest.fixture(scope="module")
def solution() -> Solution:
    return solve(read(ROOT / "instances" / "small" / "8b-buy-network.yaml"))


def stated(text: str) -> Partial:
    return partial_of(read_yaml(text.encode(), "design.yaml"))


def whole(instance: Instance, text: str) -> Completed:
    return complete(instance, stated(text))


def faults(instance: Instance, text: str) -> dict[str, str]:
    """Path -> what is expected, for each fault."""
    with pytest.raises(SpecError) as caught:
        whole(instance, text)
    return {fault.path: fault.expected for fault in caught.value.faults}


class TestForms:
    def test_a_solution_its_design_and_the_plain_form_are_one(self, solution: Solution, tmp_path: Path) -> None:
        write(solution, tmp_path)
        assert solution.design is not None
        forms: list[Any] = [
            solution.to_document(),
            {"design": solution.to_document()["design"]},
            solution.to_document()["design"],
            solution.design.to_document(),
        ]
        for number, form in enumerate(forms):
            file = tmp_path / f"form{number}.json"
            file.write_text(json.dumps(form))
            found = read_design(file, solution.instance)
            assert found == Completed(solution.design, ()), number
        assert read_design(tmp_path / "solution.json", solution.instance).design == solution.design

    def test_a_solution_without_a_design(self, owned: Instance) -> None:
        document = json.dumps(Solution("unknown", owned, "s").to_document())
        with pytest.raises(SpecError, match="the status of this solution is unknown"):
            stated(document)

    def test_quantities_with_units(self, offered: Instance) -> None:
        text = f"plan: {PLAN}\npurchase: {{servers: 2, checkpoint_interval: 30min}}"
        assert stated(text).values["purchase.checkpoint_interval_s"] == 1800.0
        assert "purchase.checkpoint_interval" not in faults(offered, text)


class TestStrictness:
    @pytest.mark.parametrize(
        ("text", "place", "path", "found"),
        [
            ("plan: {tpp: 2}", (1, 8), "plan.tpp", "'tpp'"),
            ("plan:\n  tp: two", (2, 7), "plan.tp", "'two'"),
            ("plan: {tp: 2.0}", (1, 12), "plan.tp", "2.0"),
            ("plan: {tp: true}", (1, 12), "plan.tp", "true"),
            ("plan: {tp: 0}", (1, 12), "plan.tp", "0"),
            ("plan: {zero: 4}", (1, 14), "plan.zero", "4"),
            ("plan: {recompute: some}", (1, 19), "plan.recompute", "'some'"),
            ("purchase: {checkpoint_interval: 30}", (1, 33), "purchase.checkpoint_interval", "30"),
            ("purchase: {network: {kind: torus}}", (1, 28), "purchase.network.kind", "'torus'"),
            ("placement: {tp: {rack: 2}}", (1, 18), "placement.tp.rack", "'rack'"),
            ("workloads: {a: {}, b: {}}", (1, 12), "workloads", "a, b"),
            ("workloads:\n  pretrain:\n    plan: {tp: x}", (3, 16), "workloads.pretrain.plan.tp", "'x'"),
            ("purchase: {servers: [{count: x}]}", (1, 30), "purchase.servers[0].count", "'x'"),
            ("design: {plan: {tp: x}}", (1, 21), "design.plan.tp", "'x'"),
            ("design: {}\nplan: {}", (2, 1), "plan", "'plan'"),
            ("plan: {tp: 1, tp: 2}", (1, 15), "plan.tp", "the key 'tp' a second time"),
            ("[1]", (1, 1), "", "a list"),
        ],
    )
    def test_a_fault_at_its_place(self, text: str, place: tuple[int, int], path: str, found: str) -> None:
        with pytest.raises(SpecError) as caught:
            stated(text)
        (fault,) = caught.value.faults
        assert (fault.file, (fault.line, fault.column), fault.path, fault.found) == ("design.yaml", place, path, found)

    def test_all_faults_at_once(self) -> None:
        with pytest.raises(SpecError) as caught:
            stated("plan: {tp: x, pp: y}\npurchase: {servers: z}")
        assert [fault.line for fault in caught.value.faults] == [1, 1, 2]

    def test_no_such_file(self, tmp_path: Path, owned: Instance) -> None:
        with pytest.raises(SpecError, match="expected a design file that can be read"):
            read_design(tmp_path / "nothing.yaml", owned)


class TestFilled:
    def test_what_follows(self, owned: Instance) -> None:
        plan = "{tp: 2, cp: 1, pp: 1, micro_batch: 1, recompute: none, zero: 1}"
        found = whole(owned, f"plan: {plan}\nplacement: {LAYOUT}\npurchase: {{servers: 2}}")
        decided, purchase, placement = found.design.plan, found.design.purchase, found.design.placement
        assert (decided.dp, decided.ep, decided.virtual_stages) == (8, 1, 1)  # 16 GPUs / tp 2; dense; no pipeline
        assert (purchase.server, purchase.network.kind, purchase.network.tiers) == ("hgx-h100", "fat-tree", 1)
        assert (purchase.storage.units, purchase.checkpoint_interval_s) == (0, 0.0)
        assert (tuple(placement.tp), tuple(placement.dp)) == ((2, 1, 1), (4, 2, 1))
        assert evaluate(owned, found.design).workloads["pretrain"].step_time_s > 0
        said = [line.partition(" = ")[0] for line in found.filled]
        assert said == [
            *("workload", "purchase.server"),
            *("plan.schedule", "plan.shard_within", "plan.expert_tp", "plan.context_exchange"),
            *("plan.ep", "plan.virtual_stages", "plan.dp"),
            *("purchase.network", "placement.tp", "placement.dp", "purchase.storage"),
        ]

    def test_the_design_of_the_help_is_whole(self, owned: Instance) -> None:
        text = """
            plan: {tp: 4, cp: 1, pp: 2, virtual_stages: 1, micro_batch: 1, recompute: none, zero: 1}
            placement: {tp: {domain: 4}, pp: {leaf: 2}}
            purchase: {server: hgx-h100, servers: 2}
        """
        found = whole(owned, text).design
        assert (found.plan.dp, tuple(found.placement.pp), tuple(found.placement.dp)) == (2, (1, 2, 1), (2, 1, 1))

    def test_servers_follow_from_the_ranks(self, owned: Instance) -> None:
        assert whole(owned, f"plan: {PLAN}\nplacement: {LAYOUT}").design.purchase.servers == 2  # 16 ranks / 8

    def test_one_server_holds_what_is_less_than_full(self, owned: Instance) -> None:
        found = whole(owned, f"plan: {PLAN.replace('dp: 8', 'dp: 1')}").design
        assert (found.purchase.servers, found.purchase.network.kind) == (1, "none")
        assert tuple(found.placement.tp) == (2, 1, 1)

    def test_degrees_follow_from_layouts(self, owned: Instance) -> None:
        alone = "{domain: 1, leaf: 1, pod: 1}"
        layouts = (
            f"{{tp: {{domain: 2, leaf: 1, pod: 1}}, dp: {{domain: 4, leaf: 2, pod: 1}}, cp: {alone}, pp: {alone}}}"
        )
        found = whole(owned, f"plan: {{micro_batch: 1, recompute: none, zero: 1}}\nplacement: {layouts}").design
        assert (found.plan.tp, found.plan.dp, found.plan.world, found.purchase.servers) == (2, 8, 16, 2)

    def test_a_pin_of_the_instance_is_a_value(self) -> None:
        pinned = parse(OWNED, overrides=["plan.recompute=full", "plan.zero=[1]"])
        found = whole(pinned, "plan: {tp: 2, cp: 1, pp: 1, dp: 8, micro_batch: 1}\nplacement: {tp: {domain: 2}}")
        assert (found.design.plan.recompute, found.design.plan.zero) == ("full", 1)
        assert "plan.recompute = full: the instance leaves no other" in found.filled

    def test_the_only_micro_batch_that_divides(self, owned: Instance) -> None:
        # global batch 32 on dp 32: one sequence a rank and step
        text = "plan: {tp: 1, cp: 1, pp: 1, dp: 32, recompute: none, zero: 1}"
        assert "plan.micro_batch" not in faults(owned, text + "\npurchase: {servers: 2}")

    def test_the_best_interval_of_the_model(self, offered: Instance) -> None:
        text = (
            f"plan: {PLAN}\nplacement: {LAYOUT}\n"
            "purchase: {server: hgx-h100, servers: 2, storage: {units: 1}, network: {kind: rail-only, nic: cx7-400g}}"
        )
        found = whole(offered, text)
        best = found.design
        assert "purchase.checkpoint_interval_s" in "".join(found.filled)
        here = evaluate(offered, best).workloads["pretrain"].goodput
        for interval in ("5min", "1h", "5h", "1d"):
            other = whole(offered, text.replace("servers: 2", f"servers: 2, checkpoint_interval: {interval}")).design
            assert other.purchase.checkpoint_interval_s != best.purchase.checkpoint_interval_s
            assert evaluate(offered, other).workloads["pretrain"].goodput <= here

    def test_a_limit_does_not_stand_in_the_way(self) -> None:
        """What a design takes is judged, not refused: a budget for nothing leaves the same completion."""
        poor = parse(OFFERED, overrides=["limits.capex=$1k"])
        text = (
            f"plan: {PLAN}\nplacement: {LAYOUT}\n"
            "purchase: {server: hgx-h100, servers: 2, storage: {units: 1}, network: {kind: rail-only, nic: cx7-400g}}"
        )
        assert whole(poor, text) == whole(parse(OFFERED), text)


class TestAsked:
    def test_what_could_be_several_things(self, offered: Instance) -> None:
        found = faults(offered, f"plan: {PLAN}")
        assert found["purchase.server"] == "one of hgx-h100, dgx-b200"
        assert found["purchase.storage.units"] == "one of 1, 2"
        assert "purchase.storage.product" not in found  # there is one

    def test_networks_by_what_differs(self, offered: Instance) -> None:
        text = f"plan: {PLAN}\npurchase: {{server: hgx-h100, servers: 2, storage: {{units: 1}}}}"
        found = faults(offered, text)
        assert found["purchase.network.kind"] == "one of rail-only, rail-optimized"
        assert "cx7-400g" in found["purchase.network.nic"]
        assert "purchase.network.switch" not in found
        assert "purchase.network.oversubscription" not in found  # one tier reaches two servers

    def test_layouts(self, owned: Instance) -> None:
        found = faults(owned, f"plan: {PLAN}\npurchase: {{servers: 2}}")
        # tp inside a server and dp across, or tp across two servers and dp inside
        assert found == {
            "placement.tp": "one of 2 x 1 x 1, 1 x 2 x 1",
            "placement.dp": "one of 4 x 2 x 1, 8 x 1 x 1",
        }

    def test_the_plan(self, owned: Instance) -> None:
        found = faults(owned, "purchase: {servers: 2}")
        assert found["plan.tp"] == "one of 1, 2, 4, 8"  # 8 key and value heads
        assert found["plan.dp"] == "one of 1, 2, 4, 8, 16, 32"
        assert found["plan.recompute"] == "one of none, selective, mlp, full"
        assert found["plan.zero"] == "one of 0, 1, 2, 3"

    def test_a_rule_narrows_the_list(self, owned: Instance) -> None:
        assert faults(owned, "plan: {pp: 2}")["plan.zero"] == "one of 0, 1"  # ZeRO 2 and 3 need pp 1

    def test_servers_that_the_ranks_can_stand_on(self, owned: Instance) -> None:
        # 12 ranks fill no whole number of servers of 8: two of 6, three of 4, ... of which two can be had
        text = "plan: {tp: 4, cp: 1, pp: 3, dp: 1, micro_batch: 1, recompute: none, zero: 0, virtual_stages: 1}"
        assert faults(owned, text)["purchase.servers"] == "2"


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "path", "expected"),
        [
            ("workload: other", "workload", "'pretrain'"),
            ("purchase: {server: dgx-a100}", "purchase.server", "a server that the instance offers or owns"),
            ("purchase: {network: {kind: rail-only}}", "purchase.network.kind", "one of fat-tree, none"),
            ("purchase: {storage: {product: weka-pod8}}", "purchase.storage.product", "none"),
            ("purchase: {servers: 3}", "purchase.servers", "at most 2 x hgx-h100"),
            ("purchase: {checkpoint_interval: 1h}", "purchase.checkpoint_interval_s", "0, or no interval"),
        ],
    )
    def test_names_that_the_instance_does_not_have(self, owned: Instance, text: str, path: str, expected: str) -> None:
        assert faults(owned, text)[path].startswith(expected)

    def test_an_interval_of_nothing(self, offered: Instance) -> None:
        text = "purchase: {server: hgx-h100, storage: {units: 1}, checkpoint_interval_s: 0}"
        assert faults(offered, text)["purchase.checkpoint_interval_s"] == "a time above 0, such as 30min"

    def test_ranks_that_do_not_stand_on_the_servers(self, owned: Instance) -> None:
        text = f"plan: {PLAN.replace('dp: 8', 'dp: 32')}\npurchase: {{servers: 2}}"
        assert faults(owned, text) == {"placement.tp.domain": "degrees that fill the servers evenly"}
