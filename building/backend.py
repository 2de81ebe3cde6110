"""The build backend: setuptools, with the gateway's page built before it is packed.

An sdist holds the built page, so that a wheel is made from it without Node. From a checkout the page is built on the
way, with a Node from PyPI where the machine has none; where that fails, the build fails and says why.
"""

from __future__ import annotations

from typing import Any

import page
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """What must be there to build: a Node, too, where the page is not built and the machine has none."""
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_node()]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """The same for a wheel."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_node()]


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """The source distribution, with the built page in it."""
    _build_page()
    return str(build_meta.build_sdist(sdist_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """The wheel, with the built page in it."""
    _build_page()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def _node() -> list[str]:
    return [] if page.is_built() or page.find_node() is not None else [page.NODE_PACKAGE]


def _build_page() -> None:
    try:
        page.build()
    except page.PageError as problem:
        raise SystemExit(f"gpufleet cannot be packed without the gateway's page: {problem}") from None
