"""What lies in the root: a program that wrote into its working directory leaves a file that nobody listed."""

from __future__ import annotations

from tests.rules.texts import files

LISTED = {
    *(".ci", ".dockerignore", ".gitignore", "Makefile", "MANIFEST.in", "buf.yaml", "constraints.txt", "pyproject.toml"),
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("cli", "gateway", "gpufleet", "inference", "node_agent", "protos", "scheduler"),
    *("bench", "building", "deploy", "docs", "tests"),
}
"""Every file and folder of the root that somebody wrote; gen/ is made from protos/."""


def test_the_root_holds_what_is_listed_here_and_nothing_else() -> None:
    found = {name.partition("/")[0] for name in files()}
    assert found == LISTED, f"not listed: {sorted(found - LISTED)}, missing: {sorted(LISTED - found)}"
