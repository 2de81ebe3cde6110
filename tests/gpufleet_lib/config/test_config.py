"""Settings of programs: layers and origins, every kind of mistake with its line, templates and reloads."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.agent_settings import AgentSettings
from gpufleet.config.files import line_of
from gpufleet.config.layers import config_error
from gpufleet.config.live import Live
from gpufleet.config.merged import Resolved, check_file, load_program
from gpufleet.config.program_settings import PROGRAMS, check, template
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.config.settings import settings_of, value_of
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address


def load(
    tmp_path: Path, toml: str = "", flags: dict[str, object] | None = None, **environment: str
) -> Resolved[SchedulerSettings]:
    file = tmp_path / "scheduler.toml"
    file.write_text(toml)
    return load_program(
        SchedulerSettings,
        "scheduler",
        flags=flags or {},
        environment=environment,
        file=file,
        file_is_named=True,
    )


def problems(tmp_path: Path, toml: str, cls: type[Any] = SchedulerSettings) -> list[str]:
    file = tmp_path / "x.toml"
    file.write_text(toml)
    return [str(each).removeprefix(f"{tmp_path}/") for each in check_file(cls, file)]


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    resolved = load(tmp_path)
    assert resolved.settings.host == "127.0.0.1"
    assert resolved.settings.nodes.lease == timedelta(seconds=60)
    assert resolved.settings.output.attempt_bytes_max == 2**30
    assert set(resolved.origins.values()) == {"default"}


def test_a_flag_goes_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    toml = 'port = 1\ninsecure = false\nretention = "2d"\n[log]\nlevel = "debug"\n'
    resolved = load(
        tmp_path,
        toml,
        {"port": 3, "host": None, "log.level": "error"},
        GPUCTL_SCHEDULER_PORT="2",
        GPUCTL_SCHEDULER_INSECURE="true",
        GPUCTL_SCHEDULER_LOG_FORMAT="",
    )
    settings = resolved.settings
    assert (settings.port, settings.insecure, settings.retention.days) == (3, True, 2)
    assert (settings.log.level, settings.log.format) == ("error", "text")
    origins = resolved.origins
    assert origins["port"] == "--port"
    assert origins["insecure"] == "GPUCTL_SCHEDULER_INSECURE"
    assert origins["retention"] == f"{tmp_path}/scheduler.toml:3"
    assert origins["log.level"] == "--log-level"
    assert origins["host"] == "default"
    assert ("insecure", "true", "GPUCTL_SCHEDULER_INSECURE") in resolved.rows()
    assert ("store", "(SQLite in the data folder)", "default") in resolved.rows()


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("prot = 1", 'x.toml:1: prot: there is no such setting; did you mean "port"?'),
        ("\n\nport = 70000", "x.toml:3: port: 70000 is more than the most, 65535"),
        ("port = -1", "x.toml:1: port: -1 is less than the least, 0"),
        ('port = "1"', "x.toml:1: port: a string is not a whole number"),
        ("port = true", "x.toml:1: port: a boolean is not a whole number"),
        ("host = 1979-05-27", "x.toml:1: host: a date or time is not a string"),
        (
            '# retention = 1\n"retention" = 60',
            "x.toml:2: retention: a whole number is not a duration such as ",
        ),
        ('retention = "60"', "x.toml:1: retention: 60 has no unit. Write 60s for seconds, "),
        ('retention = "1s"', 'x.toml:1: retention: "1s" is less than the least, "1h"'),
        ('[log]\n# hello\nlevel = "inof"', 'or "error"; did you mean "info"?'),
        ('log.level = "x"', 'x.toml:1: log.level: "x" is not "debug" or '),
        ('log = { level = "x" }', 'x.toml:1: log.level: "x" is not "debug" or '),
        ('level = "info"', "x.toml:1: level: no setting here, but there is log.level; write it below [log]"),
        (
            "[log]\nport = 1",
            "x.toml:2: log.port: no setting here, but there is port; write it above all [tables]",
        ),
        ('log = "info"', "x.toml:1: log: this is a table; write [log] and its keys below"),
        ("[lgo]", 'x.toml:1: lgo: there is no such setting; did you mean "log"?'),
        ("port = 1\nport = 2", "x.toml:2: this is not TOML: Cannot overwrite a value"),
        ("port 1", "x.toml:1: this is not TOML: Expected '=' after a key in a key/value pair"),
        ('[output]\nattempt_bytes_max = "1G"', 'x.toml:2: output.attempt_bytes_max: the unit "G" has '),
        ('host = "0.0.0.0"', "x.toml:1: host: 0.0.0.0 is beyond this machine: "),
        ('[tls]\ncert_file = "c"', "default: tls.key_file: a certificate and its key "),
        ('[nodes]\nlease = "20m"', "default: nodes.requeue_fence: a fence shorter than "),
        ('[nodes]\nlease = "6s"', "x.toml:2: nodes.lease: a node would be lost before "),
        ('[output]\nhead_bytes_max = "2GiB"', "x.toml:2: output.head_bytes_max: the beginning cannot "),
    ],
)
def test_each_mistake_is_named_with_its_line(tmp_path: Path, toml: str, problem: str) -> None:
    (found,) = problems(tmp_path, toml)
    assert problem in found


def test_every_mistake_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    toml = "port = -1\nhots = 1\n[log]\nlevel = 1\n"
    assert [each.split(":")[1] for each in problems(tmp_path, toml)] == ["2", "1", "4"]
    with pytest.raises(GpufleetError) as caught:
        load(tmp_path, toml)
    assert caught.value.reason is Reason.CONFIG_INVALID
    assert len(caught.value.violations) == 3


def test_a_wrong_flag_and_a_wrong_variable_are_called_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError, match=r'^--port: "x" is not a whole number$'):
        load(tmp_path, flags={"port": "x"})
    with pytest.raises(GpufleetError, match=r"^GPUCTL_SCHEDULER_INSECURE: "):
        load(tmp_path, GPUCTL_SCHEDULER_INSECURE="maybe")


def test_a_wrong_value_is_an_error_even_where_a_flag_covers_it(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError, match=r"scheduler\.toml:1: port"):
        load(tmp_path, "port = -1", {"port": 1})


def test_a_named_file_must_exist_and_another_need_not(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    with pytest.raises(GpufleetError, match="cannot be read: No such file") as caught:
        load_program(SchedulerSettings, "scheduler", flags={}, environment={}, file=missing, file_is_named=True)
    assert caught.value.reason is Reason.FILE_NOT_FOUND
    load_program(SchedulerSettings, "scheduler", flags={}, environment={}, file=missing, file_is_named=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# f\xfcr\nhost = '\xff'", r"x\.toml:2: this is not UTF-8"),
        (b"\n[log]\nlevel = ['\xff']", r"x\.toml:3: this is not UTF-8"),
        (b"'\xff' = 1", r"x\.toml:1: this is not UTF-8"),
        (b"#" * 1_000_001, "larger than 1 MB"),
    ],
)
def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(GpufleetError, match=said):
        raise config_error(check_file(SchedulerSettings, file))


def test_a_byte_order_mark_and_a_latin_1_comment_are_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbfport = 7 # f\xfcr uns\n")
    read = load_program(SchedulerSettings, "scheduler", flags={}, environment={}, file=file, file_is_named=True)
    assert (read.settings.port, read.origins["port"]) == (7, f"{file}:1")


def test_a_relative_path_of_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    toml = '[tls]\ncert_file = "tls/c.pem"\nkey_file = "/k.pem"'
    settings = load(tmp_path, toml, {"data": "here"}).settings
    assert settings.tls.cert_file == tmp_path / "tls/c.pem"
    assert settings.tls.key_file == Path("/k.pem")
    assert settings.data == Path.cwd() / "here"


def test_an_agent_reads_lists_tables_and_the_variable_that_all_commands_share(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('cpus = 4\nscheduler = "a"\nlabels = { rack = "b2" }')

    def agent(**environment: str) -> AgentSettings:
        resolved = load_program(
            AgentSettings, "agent", flags={}, environment=environment, file=file, file_is_named=True
        )
        return resolved.settings

    assert agent().scheduler == (Address("a"),)
    assert agent().labels == (("rack", "b2"),)
    assert agent().cpus == 4
    settings = agent(GPUCTL_SCHEDULER="b:1,[::1]:2", GPUCTL_AGENT_LABELS="rack=b3, zone=x")
    assert settings.scheduler == (Address("b", 1), Address("::1", 2))
    assert settings.labels == (("rack", "b3"), ("zone", "x"))


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("scheduler = []", "x.toml:1: scheduler: the list is empty"),
        ("scheduler = [1]", "x.toml:1: scheduler: a whole number is not an address"),
        ('labels = "a"', 'x.toml:1: labels: a string is not a table such as { rack = "b2" }'),
        ("[labels]\na = 1", "x.toml:1: labels: the value of a is not a string"),
        ("insecure = true\nca_file = 'x'", "x.toml:1: insecure: an authority for TLS is set too"),
    ],
)
def test_each_mistake_in_an_agents_file_is_named(tmp_path: Path, toml: str, problem: str) -> None:
    (found,) = problems(tmp_path, toml, AgentSettings)
    assert problem in found


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_template_changes_nothing_and_uncommented_says_the_defaults(tmp_path: Path, program: str) -> None:
    cls: type[Any] = PROGRAMS[program]
    text = template(cls, program)
    assert max(len(line) for line in text.splitlines()) <= 120
    assert problems(tmp_path, text, cls) == []
    uncommented = re.sub(r"(?m)^#(?=\w+ = )", "", text)
    assert problems(tmp_path, uncommented, cls) == []
    resolved = load_program(cls, program, flags={}, environment={}, file=tmp_path / "x.toml", file_is_named=True)
    assert resolved.settings == cls()
    told = {key for key, each in settings_of(cls).items() if not each.default_text}
    assert {key for key, origin in resolved.origins.items() if origin != "default"} == told
    assert all(line in text for line in ["# Settings of the gpufleet", "(reloads)"])
    tomllib.loads(text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_is_described_in_sentences_and_its_default_is_allowed(program: str) -> None:
    for key, described in settings_of(PROGRAMS[program]).items():
        assert described.doc.endswith("."), key
        default = described.default()
        if default is not None:
            written = tomllib.loads(f"x = {described.kind.to_toml(default)}")["x"]
            assert described.read(written, is_text=False) == default, key


def test_the_line_of_a_key_is_found_in_all_of_tomls_ways_to_write_it() -> None:
    text = 'a = 1\nb.c = 2\n\n[d]  # "a"\n e = 3\n[f."g h"]\ni = { j = 4 }\n[[k]]\n'
    lines = {key: line_of(text, key) for key in ("a", "b.c", "d.e", "f.g h.i.j", "d", "d.unknown")}
    assert lines == {"a": 1, "b.c": 2, "d.e": 5, "f.g h.i.j": 7, "d": 4, "d.unknown": 4}


def test_a_reload_applies_what_it_can_and_names_what_waits_for_a_restart(tmp_path: Path) -> None:
    toml = "port = 1"
    live = Live(lambda: load(tmp_path, toml, {"insecure": True}))
    before = live.now
    toml = 'port = 2\ninsecure = false\n[log]\nlevel = "debug"\n'
    reloaded = live.reload()
    assert [str(each) for each in reloaded.applied] == ['log.level: "info" -> "debug"']
    assert [str(each) for each in reloaded.waiting] == ["port: 1 -> 2"]
    assert (live.now.port, live.now.log.level, live.now.insecure) == (1, "debug", True)
    assert live.resolved.origins["log.level"].endswith(":4")
    assert live.resolved.origins["port"].endswith(":1")
    assert before.log.level == "info", "settings that someone holds do not change under them"
    assert live.reload().waiting == reloaded.waiting, "it is told again until the restart"


def test_a_reload_of_a_broken_file_keeps_every_value(tmp_path: Path) -> None:
    toml = 'port = 1\n[log]\nlevel = "error"'
    live = Live(lambda: load(tmp_path, toml))
    before = live.resolved
    toml = 'port = 1\n[log]\nlevel = "debug"\nformat = "xml"'
    with pytest.raises(GpufleetError, match="xml"):
        live.reload()
    assert live.resolved is before
    assert value_of(live.now, "log.level") == "error"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("scheduler.toml", "port = 70000", "scheduler.toml:1: port: 70000 is more than the most, 65535"),
        ("agent.toml", "cpus = 0", "agent.toml:1: cpus: 0 is less than the least, 1"),
        ("gpuctl.toml", 'token_file = "x"', "gpuctl.toml:1: token_file: may not be set by a project's file"),
        ("gpuctl.toml", 'output = "x"\nscheduler = "lab:x"', "gpuctl.toml:2: scheduler: "),
        ("contexts.toml", 'current = "b"\n[contexts.a]', "contexts.toml:1: current: there is no context "),
        ("contexts.toml", "[contexts.a]\n[contexts.b]\noutput = 1", "contexts.toml:3: output: a whole number is"),
    ],
)
def test_a_file_is_checked_by_its_name(tmp_path: Path, name: str, content: str, problem: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert any(problem in str(each) for each in check(file))
    renamed = file.rename(tmp_path / "other.conf")
    assert any(problem.partition(":")[2] in str(each) for each in check(renamed, file.stem))


@pytest.mark.parametrize("name", ["scheduler.toml", "agent.toml", "gpuctl.toml", "contexts.toml"])
def test_an_empty_file_is_right_and_a_missing_one_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert check(tmp_path / name) == []
    with pytest.raises(GpufleetError, match="cannot be read"):
        check(tmp_path / "no" / name)


def test_a_file_of_no_program_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError, match="schedular") as caught:
        check(tmp_path / "schedular.toml")
    assert 'did you mean "scheduler"?' in caught.value.message
