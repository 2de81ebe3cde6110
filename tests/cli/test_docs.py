"""What the documents tell people to type exists."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from cli.menu import MODULES
from gpufleet.errors import Reason
from tests.cli.test_conventions import options_of_every_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))),
]
COMMAND = re.compile(r"`(?:[A-Z_]+=\S+ )?gpuctl ([a-z][a-z-]*)")
FAMILIES = ("config", "group", "models", "nodes", "secret", "sessions", "token")
"""Commands that take no word but those of the commands below them."""
BELOW = re.compile(rf"(?:`|^|[$#] )gpuctl ({'|'.join(FAMILIES)}) ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
SLURMS_OWN = re.compile(r"^\| `.*?[^\\](?=\|)", re.MULTILINE)
"""The first column of a table: what is typed there."""
OF_GPUCTL_ITSELF = {"--help", "--version", "--install-completion"}
OF_MAKE = (
    "bench",
    "bench.batch_kills",
    "bench.sim_scale",
    "bench.traces",
    "tests.drills",
    "tests.drills.takeover",
    "tests.fuzz",
    "tests.simulation",
)
"""What `make` passes its ARGS to, and what is run by hand."""
OF_PROGRAMS = (
    ["gpufleet.scheduler"],
    ["gpufleet.scheduler", "backup"],
    ["gpufleet.scheduler", "restore"],
    ["gpufleet.node_agent"],
    ["gpufleet.node_agent", "stop-keeper"],
    ["gpufleet.inference"],
    ["gpufleet.gateway"],
)
OF_OTHERS = {
    "--data-binary",
    "--global",
    "--gil",
    "--seed",
    *("--strength", "--row"),
    "--no-deps",
    "--find-links",
    "--frozen",
    "--target",
    "--no-build-isolation",
    "--protocol",
    "--http2-prior-knowledge",
} | {
    "--served-model-name",
    "--alias",
    "--messages",
}
"""Of curl, a profiler, the script in an example, pip, buf, servers of language models, and `make fuzz`."""
OF_ETCD_AND_PATRONI = {
    "--advertise-client-urls",
    "--candidate",
    "--data-dir",
    "--initial-advertise-peer-urls",
    "--initial-cluster",
    "--leader",
    "--listen-client-urls",
    "--listen-peer-urls",
}
OF_CODE_SERVER = {"--auth", "--bind-addr", "--user-data-dir"}
OF_CONTAINERS = {
    "--build-arg",
    "--cap-add",
    "--format",
    "--health-cmd",
    "--init",
    "--network",
    "--read-only",
    "--tag",
    "--time",
    "--volume",
    "--wheel",
}
"""Of podman and docker, and of what builds a wheel for them."""
OF_FIREWALLS_AND_SYSTEMD = {"--add-port", "--permanent", "--reload", "--dport", "--now", "--no-pager"}


@cache
def options_of_the_programs() -> set[str]:
    helps = [
        subprocess.run([sys.executable, "-P", "-m", *words, "--help"], capture_output=True, text=True, check=True)
        for words in OF_PROGRAMS
    ]
    helps += [
        subprocess.run([sys.executable, "-m", tool, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        for tool in OF_MAKE
    ]
    return {option for done in helps for option in OPTION.findall(done.stdout)}


def test_every_command_and_option_of_a_page_exists() -> None:
    options = set().union(*options_of_every_command().values()) | options_of_the_programs() | OF_GPUCTL_ITSELF
    options |= OF_FIREWALLS_AND_SYSTEMD | OF_ETCD_AND_PATRONI | OF_CODE_SERVER | OF_CONTAINERS | OF_OTHERS
    unknown = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        if page == "docs/coming-from-slurm.md":
            text = SLURMS_OWN.sub("", text)
        commands = set(COMMAND.findall(text)) | set(re.findall(r"^gpuctl ([a-z]+)", text, re.MULTILINE))
        unknown += [(page, name) for name in (commands - MODULES.keys()) | (set(OPTION.findall(text)) - options)]
    assert not unknown


def test_every_command_below_another_of_a_page_exists() -> None:
    known = options_of_every_command().keys()
    groups = {words.rpartition(" ")[0] for words in known} - known
    unknown = []
    for page in PAGES:
        for name, below, third in BELOW.findall((ROOT / page).read_text()):
            words = f"{name} {below} {third}".strip() if f"{name} {below}" in groups else f"{name} {below}"
            unknown += [] if words in known | groups else [(page, f"gpuctl {words}")]
    assert not unknown


def test_every_next_step_names_commands_that_exist() -> None:
    named = {
        (reason.name, name) for reason in Reason for name in re.findall(r"gpuctl ([a-z][a-z-]*)", reason.next_step)
    }
    assert not {each for each in named if each[1] not in MODULES.keys() | {"version"}}


def test_the_readmes_table_names_every_command_once() -> None:
    readme = (ROOT / "README.md").read_text()
    rows = readme.partition("## Commands")[2].partition("`gpuctl COMMAND --help`")[0]
    assert sorted(re.findall(r"`([a-z-]+)[^`]*`", rows)) == sorted(MODULES)
