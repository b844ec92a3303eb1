"""JSON Schema of typed results, generated from their dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter


def json_schema(types: Sequence[Any]) -> dict[str, Any]:
    """The schema of a document that is one of the dataclasses ``types`` (draft 2020-12)."""
    schema = TypeAdapter(reduce(or_, types)).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
