"""JSON Schema of typed results, generated from their dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any

from pydantic import TypeAdapter


def json_schema(types: Sequence[Any]) -> dict[str, Any]:
    """The schema of a document that is one of the dataclasses ``types`` (draft 2020-12).

    Its ``schema_version`` may only be the SCHEMA_VERSION of the module that defines it.
    """
    schema = TypeAdapter(reduce(or_, types)).json_schema(mode="serialization")
    for found in types:
        version = getattr(import_module(found.__module__), "SCHEMA_VERSION", None)
        home = schema.get("$defs", {}).get(found.__name__, schema)
        if version is not None and "schema_version" in home.get("properties", {}):
            home["properties"]["schema_version"] = {"const": version, "type": "integer"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
