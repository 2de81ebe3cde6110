"""The API in OpenAPI 3.1, made from the table, the contract's descriptors and its comments."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from gpufleet.net.json_messages import inner

from ..dashboard.guard import BODY_BYTES_MAX
from .file_paths import add_files
from .refusals import refusals
from .requests import KEY_HEADER, is_json
from .schemas import Schema, Schemas, comments, described
from .table import PREFIX, ROWS, Form, Row

VERSION = "1"

ABOUT = f"""\
What gpuctl does, over HTTP: docs/http-api.md shows it with curl. Every call wants a token of gpufleet, and may do what
its role may. Messages are the contract's own, by their own field names; 64-bit numbers are answered in quotes, and
every refusal is one object with a stable reason. A body is JSON of at most {BODY_BYTES_MAX:,} bytes."""

ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["reason", "message", "next_step", "field", "fields", "metadata"],
            "properties": {
                "reason": {
                    "type": "string",
                    "description": "A stable word; docs/troubleshooting.md has a row of each.",
                },
                "message": {"type": "string", "description": "What is wrong, in a sentence."},
                "next_step": {"type": "string", "description": "What to do now."},
                "field": {"type": "string", "description": "The first wrong field's path in the request; empty: none."},
                "fields": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["field", "why"],
                        "properties": {"field": {"type": "string"}, "why": {"type": "string"}},
                    },
                },
                "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    },
}

MASK_LEFT_OUT = "Where update_mask is left out, the fields that are said are those that are changed, a null one too."
LINES_SAID = (
    "One JSON object a line, as they come; an empty line says that the stream lives. An error is the last line."
)


@cache
def document() -> bytes:
    """The whole of it as JSON."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        paths.setdefault(row.path, {})[row.verb.lower()] = _operation(row, schemas)
    add_files(paths)
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "gpufleet", "version": VERSION, "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token: gf_…"}},
            "schemas": {"Error": ERROR, **schemas.made},
        },
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def _operation(row: Row, schemas: Schemas) -> dict[str, Any]:
    said = comments()[f"Scheduler.{row.rpc}"]
    notes = [said, *([MASK_LEFT_OUT] if row.masked else []), *([LINES_SAID] if row.form is Form.LINES else [])]
    words = re.findall(r"\w+", row.path.removeprefix(PREFIX))
    operation: dict[str, Any] = {
        "operationId": "_".join([row.verb.lower(), *words]),
        "tags": [row.subject],
        "summary": said.partition(". ")[0].rstrip("."),
        "description": " ".join(notes),
        "parameters": _parameters(row, schemas),
        "responses": {
            "200": {"description": "The answer.", "content": _content(row, schemas)},
            **refusals(has_body=row.has_body),
        },
    }
    if row.has_body:
        schema = schemas.body(row.asked, row.in_path, row.needed)
        operation["requestBody"] = {"required": bool(row.needed), "content": {"application/json": {"schema": schema}}}
    return operation


def _parameters(row: Row, schemas: Schemas) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, path in row.parameters.items():
        kind = row.asked
        *outer, leaf = path.split(".")
        for each in outer:
            kind = inner(kind.fields_by_name[each])
        schema = schemas.parameter(kind.fields_by_name[leaf])
        schema = schema.get("items", schema)
        if schema["type"] == "string":
            schema = schema | {"minLength": 1, "pattern": "^[^/]+$"}
        found.append(described({"name": name, "in": "path", "required": True, "schema": schema}, f"{kind.name}.{leaf}"))
    if not row.has_body:
        for field in row.asked.fields:
            if field.name in row.in_path:
                continue
            if is_json(field):
                shape: Schema = {"content": {"application/json": {"schema": schemas.asked(field)}}}
            else:
                shape = {"schema": schemas.parameter(field)}
            found.append(described({"name": field.name, "in": "query", **shape}, f"{row.asked.name}.{field.name}"))
    if row.takes_key:
        key = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]([ -~]*[!-~])?$"}
        text = "The request_id: the same key and content is done once."
        found.append({"name": KEY_HEADER, "in": "header", "schema": key, "description": text})
    return found


def _content(row: Row, schemas: Schemas) -> dict[str, Any]:
    media_type = row.form.value.partition(";")[0]
    told = schemas.answer(row.method.output_type)
    match row.form:
        case Form.OBJECT:
            return {media_type: {"schema": told}}
        case Form.LINES:
            return {media_type: {"schema": {"type": "string"}, "x-line-schema": told}}
        case Form.BYTES:
            return {media_type: {"schema": {"type": "string"}}}
