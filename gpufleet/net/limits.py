"""Bounds that both ends of a connection share."""

from __future__ import annotations

MESSAGE_BYTES_MAX = 16_000_000
"""The longest message that is sent or taken. Well above the longest argv and environment that Linux starts
(a few MB), so that those are refused with their field's name; far below what a bug could fill memory
with."""

METADATA_BYTES_MAX = 64_000
"""The longest headers; a refused call's rich status travels in them."""
