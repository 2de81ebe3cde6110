"""What OpenAPI says of files that come with a request, which the contract has as streams of pieces."""

from __future__ import annotations

from typing import Any

from .files import STORED_HEADER
from .forms import FORM
from .left_files import LEFT_PATH
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
ERRORS = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
ABOUT_LEFT = "They are for whoever reads what the job writes; docs/files.md says how long they are kept."
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
    paths[LEFT_PATH.replace(":path}", "}")] = _of_a_left_file()


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
    head["responses"] = {"200": {"description": "It is."}, **_without_content()}
    return {"put": put, "get": get, "head": head}


def _of_a_left_file() -> dict[str, Any]:
    number: Schema = {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}
    path: Schema = {"type": "string", "minLength": 1}
    rank: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
    wanted: Schema = {"type": "string", "pattern": "^bytes=[0-9]{1,18}-[0-9]{0,18}$"}
    parameters: list[dict[str, Any]] = [
        _parameter("job_id", "path", number, "The job's id."),
        _parameter("path", "path", path, "The file's path, as /jobs/{job_id}/files names it; its slashes as they are."),
        _parameter("rank", "query", rank, "The rank that left it, 0 by default."),
        _parameter("Range", "header", wanted, "The part that is wanted, as bytes=FIRST-LAST."),
    ]
    file = {"*/*": {"schema": BYTES}}
    whole = {"description": "The file. Its type is what its name says, where a browser cannot run it."}
    missing = {"description": "It has none of the bytes that Range wants.", "content": ERRORS}
    get = _described("get", "left_file", "The bytes of a file that a job left", ABOUT_LEFT, parameters)
    get["responses"] = {
        "200": whole | {"content": file},
        "206": {"description": "The part that Range wants.", "content": file},
        "304": {"description": "It is still the one that If-None-Match names."},
        "416": missing,
        **refusals(has_body=False),
    }
    head = _described("head", "left_file", "Whether a job left a file, and its size", ABOUT_LEFT, parameters[:3])
    head["responses"] = {"200": {"description": "It did; Content-Length is its size."}, **_without_content()}
    return {"get": get, "head": head}


def _parameter(name: str, place: str, schema: Schema, description: str) -> dict[str, Any]:
    told = {"name": name, "in": place, "schema": schema, "description": description}
    return told | {"required": True} if place == "path" else told


def _without_content() -> dict[str, Any]:
    return {status: {"description": each["description"]} for status, each in refusals(has_body=False).items()}


def _operation(verb: str, summary: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    about = "Files are each person's own; docs/files.md says what is kept, and for how long."
    return _described(verb, "files_digest", summary, about, parameters)


def _described(verb: str, of: str, summary: str, about: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "operationId": f"{verb}_{of}",
        "tags": ["jobs"],
        "summary": summary,
        "description": f"{summary}. {about}",
        "parameters": parameters,
    }
