"""JSON Schema of an instance file, for editors. Floor 1."""

from __future__ import annotations

from typing import Any

from codesign import catalogue
from codesign.spec.instance import Instance
from codesign.spec.stated import PRESET

SECTIONS = {
    "Model": "models",
    "Gpu": "gpus",
    "Server": "servers",
    "Nic": "nics",
    "Switch": "switches",
    "Link": "links",
    "Storage": "storage",
}
"""Models that a name from the catalogue can stand for."""
FOLLOW = ("kv_heads", "head_size")
"""Fields of a model that follow from others where they are not stated."""


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12; names of the catalogue are listed, so that an editor can complete them."""
    schema = Instance.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"]
    for name, section in SECTIONS.items():
        if name in definitions:
            definitions[name] = _with_presets(definitions[name], catalogue.load().names(section), name == "Model")
    definitions["Assumptions"].pop("required", None)
    schema["properties"]["workloads"] |= {"minItems": 1, "maxItems": 1}
    definitions["StorageOffer"] = {"anyOf": [definitions["StorageOffer"], {"$ref": "#/$defs/Storage"}]}
    offers = schema["properties"]["offers"]
    schema["properties"]["offers"] = {"anyOf": [offers, {"const": "none"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "codesign instance"}


def _with_presets(full: dict[str, Any], names: tuple[str, ...], is_model: bool) -> dict[str, Any]:
    full = {**full, "required": [name for name in full["required"] if name not in FOLLOW]}
    replaced = {
        **full,
        "properties": {PRESET: {"enum": list(names)}, **full["properties"]},
        "required": [PRESET],
    }
    choices = [{"enum": list(names)}, replaced, full]
    if is_model:
        file = {"type": "string", "pattern": r"\.json$", "description": "path of a Hugging Face config.json"}
        stated = {"huggingface": {"type": "string"}, **full["properties"]}
        choices += [file, {**full, "properties": stated, "required": ["huggingface"]}]
    return {"anyOf": choices, "description": full.get("description", "")}
