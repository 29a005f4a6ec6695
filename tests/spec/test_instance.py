"""Instances as objects: presets, documents, digests, overrides, and the JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codesign import SpecError, catalogue, parse, read
from codesign.spec import hardware, limits, workload
from codesign.spec.instance import Instance
from codesign.spec.schema import json_schema

INSTANCES = Path(__file__).parents[2] / "instances"
FILES = sorted(file for file in INSTANCES.rglob("*.yaml") if file.name != "optima.yaml")
MODELS = {
    "gpus": hardware.Gpu,
    "nics": hardware.Nic,
    "switches": hardware.Switch,
    "links": hardware.Link,
    "storage": hardware.Storage,
    "models": workload.Model,
    "assumptions": limits.Assumptions,
}
SMALL = """
schema: 1
name: small
workloads: [{model: llama-3.1-8b, sequence_length: 4096, global_batch: 64, tokens: 1B}]
offers:
  servers: [hgx-h100, {preset: dgx-b200, price: $400k}]
limits: {capex: $3M}
"""


def refusal(text: str, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text, overrides=overrides)
    return str(caught.value)


class TestPresets:
    @pytest.mark.parametrize(
        ("section", "name"), [(s, n) for s in MODELS for n in catalogue.load().names(s)], ids=lambda each: str(each)
    )
    def test_every_record_is_one_of_its_kind(self, section: str, name: str) -> None:
        values = catalogue.load().values(section, name)
        record = MODELS[section].model_validate(values)
        for field, value in values.items():
            found = getattr(record, field)
            if isinstance(value, int | float | str):
                assert found == value
            elif field in ("peak_flops", "ports"):
                assert dict(found) == value
            else:
                assert {name: getattr(found, name) for name in value} == value

    @pytest.mark.parametrize("name", catalogue.load().names("servers"))
    def test_every_server_can_be_owned(self, name: str) -> None:
        text = f"""
schema: 1
name: owned
workloads: [{{model: llama-3.1-8b, sequence_length: 4096, global_batch: 64}}]
offers: none
inventory: [{{server: {name}, count: 1}}]
objective: step_time
"""
        (item,) = parse(text).inventory
        assert item.server.name == name
        assert item.server.gpu.name == catalogue.load().record("servers", name)["gpu"].value

    def test_fields_of_a_preset_are_replaced(self) -> None:
        whole, cheaper = parse(SMALL).offers.servers
        assert (whole.price_usd, cheaper.price_usd) == (310e3, 400e3)
        assert cheaper.gpus == 8
        assert cheaper.name == "dgx-b200"

    def test_a_preset_inside_a_preset(self) -> None:
        text = SMALL.replace("price: $400k", "price: $400k, gpu: {preset: b200-sxm, memory: 100GB}")
        name = catalogue.load().record("servers", "dgx-b200")["gpu"].value
        server = parse(text.replace("b200-sxm", str(name))).offers.servers[1]
        assert server.gpu.memory_bytes == 100e9

    def test_by_default_everything_with_a_price_is_offered(self) -> None:
        instance = parse(SMALL.split("offers:", maxsplit=1)[0] + "limits: {capex: $3M}\n")
        known = catalogue.load()
        priced = [name for name in known.names("servers") if "price_usd" in known.record("servers", name)]
        assert [server.name for server in instance.offers.servers] == priced
        assert [nic.name for nic in instance.offers.nics] == list(known.names("nics"))
        assert [offer.product.name for offer in instance.offers.storage] == list(known.names("storage"))

    def test_servers_without_the_precision_are_not_offered_by_default(self) -> None:
        text = SMALL.split("offers:", maxsplit=1)[0].replace("tokens: 1B", "tokens: 1B, precision: fp8")
        instance = parse(text + "limits: {capex: $3M}\n")
        assert all("fp8" in server.gpu.peak_flops for server in instance.offers.servers)

    def test_assumptions_are_those_of_the_catalogue_unless_stated(self) -> None:
        instance = parse(SMALL + "assumptions: {pue: 1.1, electricity: $0.05/kWh}\n")
        assert instance.assumptions.pue == 1.1
        assert instance.assumptions.electricity_usd_per_joule == pytest.approx(0.05 / 3.6e6)
        assert instance.assumptions.failure_gpu_hours == parse(SMALL).assumptions.failure_gpu_hours

    def test_a_model_in_full_fills_in_what_follows(self) -> None:
        text = SMALL.replace(
            "llama-3.1-8b",
            "{name: m, layers: 2, hidden: 1024, heads: 8, ffn_hidden: 4096, "
            "gated: true, vocabulary: 100, tied_embeddings: true}",
        )
        model = parse(text).workloads[0].model
        assert (model.kv_heads, model.head_size, model.experts) == (8, 128, 0)


class TestDocuments:
    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
    def test_round_trip(self, file: Path) -> None:
        instance = read(file)
        document = json.loads(json.dumps(instance.to_document(), allow_nan=False))
        again = Instance.from_document(document)
        assert again == instance
        assert hash(again) == hash(instance)
        assert again.to_document() == instance.to_document()

    def test_the_digest_is_of_everything(self) -> None:
        instance = parse(SMALL)
        assert parse(SMALL + "# a comment\n").digest() == instance.digest()
        seen = {instance.digest()}
        for override in (
            "name=x",
            "plan.tp=1",
            "limits.capex=$3.0000001M",
            "assumptions.pue=1.3",
            "offers.servers[1].power=1kW",
        ):
            changed = parse(SMALL, overrides=[override])
            assert changed != instance
            seen.add(changed.digest())
        assert len(seen) == 6

    def test_a_document_with_more_in_it_is_refused(self) -> None:
        document = parse(SMALL).to_document()
        document["offers"]["colour"] = "red"
        with pytest.raises(SpecError, match="colour"):
            Instance.from_document(document)


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "value"),
        [
            ("plan.tp=16", lambda one: one.workloads[0].plan.tp == (16,)),
            ("plan.tp=[1, 2]", lambda one: one.workloads[0].plan.tp == (1, 2)),
            ("workloads.0.plan.recompute=full", lambda one: one.workloads[0].plan.recompute == ("full",)),
            ("workloads[0].global_batch=32", lambda one: one.workloads[0].global_batch == 32),
            ("tokens=2B", lambda one: one.workloads[0].tokens == 2e9),
            ("limits.capex=$40M", lambda one: one.limits.capex_usd == 40e6),
            ("limits.capex_usd=4e7", lambda one: one.limits.capex_usd == 40e6),
            ("limits={gpus: 8}", lambda one: one.limits.gpus == 8 and one.limits.capex_usd is None),
            ("offers.servers[0].price=$1k", lambda one: one.offers.servers[0].price_usd == 1000.0),
            ("offers.servers=[hgx-h200]", lambda one: one.offers.servers[0].name == "hgx-h200"),
            ("assumptions.pue=1.5", lambda one: one.assumptions.pue == 1.5),
            ("objective=step_time", lambda one: one.objective == "step_time"),
            ("name==", lambda one: one.name == "="),
        ],
    )
    def test_replaces(self, override: str, value: Any) -> None:
        assert value(Instance.from_document(parse(SMALL).to_document(), [override]))
        if not override.startswith("offers.servers[0]"):  # in the file that one is a name, not a mapping
            assert value(parse(SMALL, overrides=[override]))

    def test_the_last_one_holds(self) -> None:
        assert parse(SMALL, overrides=["limits.gpus=8", "limits.gpus=16"]).limits.gpus == 16

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("plan.tp", "path=value"),
            ("=3", "path=value"),
            ("plan..tp=3", "path=value"),
            ("plan.tp[=3", "path=value"),
            ("limits.capx=3", "did you mean capex"),
            ("plan.tp=x", "whole number"),
            ("offers.servers[9]=hgx-h100", "no '9'"),
            ("name.first=x", "no 'first'"),
            ("workloads[1].name=x", "no '1'"),
            ("limits.power=100", "no unit"),
            ("plan.tp={a: 1, a: 2}", "second time"),
            ("plan.tp=[1", "YAML"),
            ("limits.gpus=" + "9" * 30, "at most"),
        ],
    )
    def test_refused_in_its_own_words(self, override: str, words: str) -> None:
        message = refusal(SMALL, (override,))
        assert words in message
        assert "--set" in message


class TestSchema:
    SCHEMA = json_schema()

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
    def test_every_instance_of_ours_is_valid(self, file: Path) -> None:
        import jsonschema

        from codesign.spec.source import read_yaml

        jsonschema.Draft202012Validator(self.SCHEMA).validate(read_yaml(file.read_bytes(), "x").data)

    def test_it_is_a_schema(self) -> None:
        import jsonschema

        jsonschema.Draft202012Validator.check_schema(self.SCHEMA)

    @pytest.mark.parametrize(
        "override",
        [
            "plan.tp=x",
            "limits.power=100",
            "objective=time",
            "schema=2",
            "workloads=[]",
            "colour=red",
            "offers.servers=[nothing]",
        ],
    )
    def test_it_refuses_what_we_refuse(self, override: str) -> None:
        import jsonschema

        from codesign.spec.overrides import apply
        from codesign.spec.source import read_yaml

        source = read_yaml(SMALL.encode(), "x")
        apply(source, [override])
        assert not jsonschema.Draft202012Validator(self.SCHEMA).is_valid(source.data)
        refusal(SMALL, (override,))

    def test_names_of_the_catalogue_can_be_completed(self) -> None:
        text = json.dumps(self.SCHEMA)
        for section in ("models", "servers", "switches", "storage"):
            assert all(f'"{name}"' in text for name in catalogue.load().names(section))


class TestContradictions:
    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("offers:\n  servers: [hgx-h100, {preset: dgx-b200, price: $400k}]", "offers: none", "no server"),
            ("limits: {capex: $3M}", "limits: {deadline: 5d}", "no limit on money"),
            (
                "limits: {capex: $3M}",
                "limits: {capex: $3M}\ninventory: [{server: hgx-h100, count: 2, fabric: fat-tree}]",
                "fabric and switch together",
            ),
            (
                "limits: {capex: $3M}",
                "limits: {capex: $3M}\ninventory: [{server: hgx-h100, count: 1}, {server: hgx-h100, count: 1}]",
                "second time",
            ),
            (
                "limits: {capex: $3M}",
                "limits: {capex: $3M}\ninventory: [{server: {preset: hgx-h100, gpus: 4}, count: 1}]",
                "another name",
            ),
            (
                "limits: {capex: $3M}",
                "limits: {capex: $3M}\ninventory: [{server: dgx-a100, count: 1, nic: cx8-800g}]",
                "faster than the slots",
            ),
            (
                "limits: {capex: $3M}",
                "limits: {capex: $3M}\n"
                "inventory: [{server: dgx-a100, count: 2, fabric: fat-tree, switch: quantum-x800-q3400}]",
                "without ports of 200Gb/s",
            ),
            ("servers: [hgx-h100,", "servers: [{preset: hgx-h100, rails: 3},", "rails that divide"),
            ("tokens: 1B", "precision: fp8, tokens: 1B, plan: {tp: 1}", ""),
        ],
    )
    def test_told(self, old: str, new: str, words: str) -> None:
        assert old in SMALL
        text = SMALL.replace(old, new)
        if words:
            assert words in refusal(text)
        else:
            parse(text)

    def test_several_owned_servers_without_any_network(self) -> None:
        text = SMALL.split("offers:", maxsplit=1)[0] + "offers: none\ninventory: [{server: hgx-h100, count: 2}]\n"
        assert "no network" in refusal(text)

    def test_a_precision_that_an_owned_gpu_lacks(self) -> None:
        text = SMALL.split("offers:", maxsplit=1)[0].replace("tokens: 1B", "tokens: 1B, precision: fp8")
        assert "has no fp8" in refusal(text + "offers: none\ninventory: [{server: dgx-a100, count: 1}]\n")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"kv_heads": 3}, "kv_heads that divide heads"),
            ({"experts": 8}, "top_k"),
            ({"top_k": 2}, "without 'experts'"),
            ({"dense_layers": 40, "experts": 8, "top_k": 2, "expert_ffn_hidden": 128}, "at most the 32 layers"),
            ({"ffn_hidden": 0}, "width of the feed-forward"),
        ],
    )
    def test_models_that_contradict_themselves(self, change: dict[str, int], words: str) -> None:
        document = parse(SMALL).to_document()
        document["workloads"][0]["model"] |= change
        with pytest.raises(SpecError, match=words):
            Instance.from_document(document)
