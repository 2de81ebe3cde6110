"""What of the page needs no browser: its pure parts, and the pictures in the documentation."""

from __future__ import annotations

import pytest

from building import page

TESTS_SECONDS_MAX = 100


@pytest.mark.slow
def test_the_pure_parts_of_the_page_pass_their_own_tests() -> None:
    page.build()
    node = page.find_node()
    assert node is not None
    ran = page.npm(node, "test", timeout_s=TESTS_SECONDS_MAX)
    assert ran.returncode == 0, ran.stdout
    assert "# fail 0" in ran.stdout and "# pass 0" not in ran.stdout, ran.stdout


@pytest.mark.slow
def test_what_the_page_is_built_of_comes_with_its_licence() -> None:
    page.build()
    told = (page.ROOT / "gateway" / "static" / "licences.md").read_text()
    assert "## uplot" in told and "Permission is hereby granted" in told


PICTURES = (
    *("page-models", "page-turn", "page-line-phone", "page-turn-phone"),
    *("dashboard-gpus", "dashboard-gpus-phone", "dashboard-queue", "dashboard-job", "dashboard-usage"),
)


@pytest.mark.parametrize("name", PICTURES)
def test_a_screenshot_of_the_documentation_is_there_and_small(name: str) -> None:
    assert 5_000 < (page.ROOT / "docs" / "images" / f"{name}.png").stat().st_size < 400_000
