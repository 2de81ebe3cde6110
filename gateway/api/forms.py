"""A request of several parts (multipart/form-data, RFC 7578): its fields in memory, its files in a spool.

The bytes are parsed by python-multipart as they come, so that a request of any length takes as little memory as a short
one. What is wrong is refused with the part's name; nothing is kept of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import FILES_MAX, trouble_with_path
from gpufleet.net.json_messages import shown

from ..dashboard.guard import BODY_BYTES_MAX
from .spool import Spool, Spooled

FIELDS_MAX = 16
"""Parts that are no files."""

HEADERS_MAX, HEADER_BYTES_MAX = 8, 4_096
"""Of one part: how many, and how long each."""

OVERHEAD_BYTES_MAX = 16_000_000
"""What may come beside files: fields, boundaries, headers, and what stands before the first part and after the last."""

FORM = "multipart/form-data"

# It warns of what callers do wrong, which is answered to them.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form: the part's name, the file's own, its type as the part says it, and where it lies."""

    part: str
    path: str
    content_type: str
    spooled: Spooled


@dataclass(slots=True)
class ReadForm:
    """What a form says. Each field stands once."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[FormFile] = field(default_factory=list)

    def flag(self, name: str) -> bool | None:
        """A field that is true or false; None where it is not said. Raises INVALID_ARGUMENT."""
        text = self.fields.get(name)
        if text is not None and text not in ("true", "false"):
            raise invalid(name, "must be true or false")
        return None if text is None else text == "true"


def is_form(request: Request) -> bool:
    """Whether a request says that it has several parts."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM


class _Part:
    """A part as it comes."""

    def __init__(self) -> None:
        self.name = self.path = self.content_type = ""
        self.is_file = self.is_kept = False
        self.text = bytearray()


class FormReader:
    """Reads one form. `fields` are the names that it may have, `one_file` the name of its only file part."""

    def __init__(self, spool: Spool, fields: tuple[str, ...], one_file: str = "") -> None:
        self._spool = spool
        self._known = fields
        self._one_file = one_file
        self._form = ReadForm()
        self._part = _Part()
        self._header: tuple[bytearray, bytearray] = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._came: list[tuple[_Part, bytes | None]] = []
        """Bytes of files that the parser has found and that are not kept yet; None: the file ends."""

        self._files = 0
        self._is_whole = False

    async def read(self, content_type: str, chunks: AsyncIterator[bytes]) -> ReadForm:
        """The whole form. Raises INVALID_ARGUMENT, MESSAGE_TOO_LARGE, and what the spool refuses."""
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise invalid("content-type", "says no boundary between the parts")
        try:
            parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": self._data,
                    "on_part_end": self._part_ended,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._header_ended,
                    "on_headers_finished": self._headers_ended,
                    "on_end": self._ended,
                },
                max_header_count=HEADERS_MAX,
                max_header_size=HEADER_BYTES_MAX,
            )
            beside = 0
            async for chunk in chunks:
                parser.write(chunk)
                beside += len(chunk) - sum(len(data) for _, data in self._came if data is not None)
                if beside > OVERHEAD_BYTES_MAX:
                    raise GpufleetError(Reason.MESSAGE_TOO_LARGE, "nearly all of the body is neither field nor file")
                await self._keep()
        except FormParserError as problem:
            raise invalid("body", f"is no form with this boundary: {shown(str(problem))[:200]}") from None
        if not self._is_whole:
            raise invalid("body", "ends before its last boundary", next_step="Send all of it.")
        return self._form

    def _begin(self) -> None:
        self._part, self._headers = _Part(), {}

    def _header_ended(self) -> None:
        name, value = (bytes(each) for each in self._header)
        self._header = bytearray(), bytearray()
        if name.lower() in self._headers:
            raise invalid("body", "a part says one header twice")
        self._headers[name.lower()] = value

    def _headers_ended(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        part = self._part
        if kind != b"form-data" or not options.get(b"name"):
            raise invalid("body", "a part has no Content-Disposition: form-data with a name")
        part.name = _text("body", options[b"name"])
        part.is_file = b"filename" in options
        if part.is_file:
            self._file_begins(part, options[b"filename"])
        elif part.name not in self._known:
            step = f"It may have {', '.join(self._known)}, and files, which say a filename."
            raise invalid(shown(part.name)[:64], "is no field of this form", next_step=step)
        elif part.name in self._form.fields:
            raise invalid(part.name, "is said twice")
        elif len(self._form.fields) >= FIELDS_MAX:
            raise invalid("body", f"has more than {FIELDS_MAX} fields")

    def _file_begins(self, part: _Part, name: bytes) -> None:
        part.path = _text("filename", name)
        if why := trouble_with_path(part.path):
            raise invalid("filename", why, next_step="Say a relative path, such as talk.mp3.")
        if self._one_file and (self._files or part.name != self._one_file):
            why = "stands twice" if part.name == self._one_file else f"is not the only file, {self._one_file}"
            raise invalid(shown(part.name)[:64], why, next_step="Send one file a request.")
        if self._files >= FILES_MAX:
            raise invalid("body", f"has more than {FILES_MAX:,} files")
        self._files += 1
        part.content_type = _text("content-type", self._headers.get(b"content-type", b"")).strip()

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.is_file:
            self._came.append((part, data[start:end]))
            return
        part.text += data[start:end]
        if len(part.text) > BODY_BYTES_MAX:
            raise GpufleetError(Reason.MESSAGE_TOO_LARGE, f"a field is at most {BODY_BYTES_MAX:,} bytes long")

    def _part_ended(self) -> None:
        part = self._part
        if part.is_file:
            self._came.append((part, None))
        else:
            self._form.fields[part.name] = _text(part.name, bytes(part.text))

    def _ended(self) -> None:
        self._is_whole = True

    async def _keep(self) -> None:
        """Put what came of files into the spool."""
        for part, data in self._came:
            if not part.is_kept:
                part.is_kept = True
                self._spool.begin()
            if data is not None:
                await self._spool.add(data)
                continue
            spooled = await self._spool.end()
            self._form.files.append(FormFile(part.name, part.path, part.content_type, spooled))
        self._came.clear()


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise invalid(shown(name)[:64], "is not UTF-8 text") from None
