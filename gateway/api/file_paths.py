"""What OpenAPI says of files that come with a request, which the contract has as streams of pieces."""

from __future__ import annotations

from typing import Any

from .files import STORED_HEADER
from .forms import FORM
from .refusals import refusals
from .schemas import DIGITS, Schema
from .table import PREFIX

BYTES: Schema = {"type": "string", "format": "binary"}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
GPU = "true: for a GPU where [routing] says so of the content type (AUTO). false: for a CPU (NEVER)."
DRY_RUN: Schema = {"type": "boolean", "description": "Whether to answer what would happen, and change nothing."}
UPLOADED: Schema = {
    "type": "object",
    "required": ["stored_bytes"],
    "properties": {"stored_bytes": DIGITS | {"description": "Bytes that are stored, on the disk."}},
}
STORED = {STORED_HEADER: {"description": "How many of its first bytes are stored.", "schema": {"type": "integer"}}}


def add_files(paths: dict[str, dict[str, Any]]) -> None:
    """Add to the paths of the table: the forms of Submit and Ingest, what Ingest answers, and /files/{digest}."""
    file = BYTES | {"description": "The file, as a part with a filename."}
    paths[f"{PREFIX}/jobs"]["post"]["requestBody"]["content"][FORM] = {
        "schema": _form(
            ["spec"],
            spec={"type": "string", "description": "A JobSpec as JSON."},
            gpu={"type": "boolean", "description": f"{GPU} Left out, the spec says it."},
            dry_run=DRY_RUN,
            file=file | {"description": "A file of the job, by its filename; any number of parts, of any name."},
        )
    }
    ingest = paths[f"{PREFIX}/ingest/file"]["post"]
    ingest["requestBody"]["content"][FORM] = {
        "schema": _form(
            ["file"],
            file=file,
            gpu={"type": "boolean", "description": f"{GPU} Left out, false."},
            content_type={"type": "string", "description": "What the file is; left out, as its part or its name says."},
            dry_run=DRY_RUN,
        )
    }
    answer = ingest["responses"]["200"]["content"]
    ingest["responses"]["200"]["description"] = "What a dry run comes to."
    ingest["responses"]["202"] = {
        "description": "The job that was made of the file; Location is where to look.",
        "headers": {"Location": {"description": "The path of the job.", "schema": {"type": "string"}}},
        "content": answer,
    }
    ingest["responses"]["default"] = {
        "description": "The answer of the model that takes the file, as it gives it. Gpufleet-Model says which it is.",
        "content": {"*/*": {"schema": {}}},
    }
    paths[f"{PREFIX}/files/{{digest}}"] = _of_a_file()


def _form(needed: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": needed, "properties": properties}


def _of_a_file() -> dict[str, Any]:
    digest = {
        "name": "digest",
        "in": "path",
        "required": True,
        "schema": DIGEST,
        "description": "SHA-256 of the whole file, in lower-case hexadecimal.",
    }
    content_range = {
        "name": "Content-Range",
        "in": "header",
        "schema": {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"},
        "description": "Where the piece lies, as bytes FIRST-LAST/SIZE; left out, the body is the whole file.",
    }
    content_digest = {
        "name": "Content-Digest",
        "in": "header",
        "schema": {"type": "string", "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$"},
        "description": "SHA-256 of the piece, as sha-256=:BASE64:. It is stored only if it has it.",
    }
    answer = {"headers": STORED, "content": {"application/json": {"schema": UPLOADED}}}
    put = _operation(
        "put", "Store a file, or a piece of one, that jobs can name", [digest, content_range, content_digest]
    )
    put["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": BYTES}}}
    put["responses"] = {
        "200": {"description": "All of it is stored, and has the digest.", **answer},
        "202": {"description": "What came is stored; more is missing.", **answer},
        **refusals(has_body=True),
    }
    whole = {"description": "The file.", "content": {"application/octet-stream": {"schema": BYTES}}}
    get = _operation("get", "The bytes of a file that was uploaded", [digest])
    get["responses"] = {"200": whole, **refusals(has_body=False)}
    head = _operation("head", "Whether a file is stored, and else how much of it", [digest])
    head["responses"] = {
        "200": {"description": "It is."},
        **{status: {"description": each["description"]} for status, each in refusals(has_body=False).items()},
    }
    return {"put": put, "get": get, "head": head}


def _operation(verb: str, summary: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "operationId": f"{verb}_files_digest",
        "tags": ["jobs"],
        "summary": summary,
        "description": f"{summary}. Files are each person's own; docs/files.md says what is kept, and for how long.",
        "parameters": parameters,
    }
