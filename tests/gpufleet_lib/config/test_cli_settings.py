"""The CLI's settings: precedence, contexts, and what a project's file can never do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.config.cli_settings import CliConfig, load_cli
from gpufleet.config.contexts import read_contexts, save_context
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.security.tokens import make_token, write_token_file

CONTEXTS = """
current = "lab"

[contexts.lab]
scheduler = "lab.example"
token_file = "lab.token"
connection_timeout = "5s"

[contexts.home]
scheduler = "home.example:6000"
output = "wide"
"""


class Account:
    """An account's home and the folder of a project."""

    def __init__(self, home: Path, contexts: str = CONTEXTS) -> None:
        self.config = home / "config" / "gpufleet"
        self.project = home / "project"
        self.config.mkdir(parents=True)
        self.project.mkdir()
        if contexts:
            (self.config / "contexts.toml").write_text(contexts)
        self.environment = {"XDG_CONFIG_HOME": str(home / "config")}

    def load(
        self,
        project: str = "",
        flags: dict[str, object] | None = None,
        context: str | None = None,
        jobs: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
        **environment: str,
    ) -> CliConfig:
        (self.project / "gpuctl.toml").write_text(project)
        variables = self.environment | environment | dict(more or {})
        return load_cli(flags or {}, context=context, environment=variables, folder=self.project, jobs=jobs)

    def refusal(self, project: str = "", context: str | None = None) -> str:
        with pytest.raises(GpufleetError) as caught:
            self.load(project, context=context)
        assert caught.value.reason is Reason.CONFIG_INVALID
        return caught.value.message


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


def test_a_new_account_speaks_to_this_machine(tmp_path: Path) -> None:
    config = Account(tmp_path, contexts="").load()
    assert config.settings.scheduler == (Address("127.0.0.1", 50051),)
    assert config.context == ""
    assert config.token({}) is None


def test_a_number_without_a_unit_is_seconds_wherever_a_wait_is_said(account: Account) -> None:
    config = account.load("max_wait_time = 9", {"session_timeout": "1.5"}, GPUCTL_CONNECTION_TIMEOUT="7")
    assert config.settings.session_timeout == timedelta(seconds=1.5)
    assert config.settings.max_wait_time == timedelta(seconds=9)
    assert config.settings.connection_timeout == timedelta(seconds=7)


def test_flag_variable_project_context_default_in_this_order(account: Account) -> None:
    config = account.load(
        'output = "json"\nmax_wait_time = "9s"\nconnection_timeout = "8s"',
        {"output": "name"},
        GPUCTL_OUTPUT="jsonl",
        GPUCTL_MAX_WAIT_TIME="7s",
    )
    settings, origins = config.settings, config.resolved.origins
    assert (settings.output, origins["output"]) == ("name", "--output")
    assert (settings.max_wait_time.seconds, origins["max_wait_time"]) == (7, "GPUCTL_MAX_WAIT_TIME")
    assert settings.connection_timeout.seconds == 8
    assert origins["connection_timeout"] == f"{account.project}/gpuctl.toml:3"
    assert settings.scheduler == (Address("lab.example"),)
    assert origins["scheduler"] == f"{account.config}/contexts.toml:5"
    assert (settings.session_timeout, origins["session_timeout"]) == (timedelta(hours=2), "default")


def test_a_context_is_chosen_by_flag_variable_address_project_or_the_current_one(account: Account) -> None:
    assert account.load().context == "lab"
    assert account.load('context = "home"').context == "home"
    assert account.load('scheduler = "home.example:6000"').context == "home"
    assert account.load('context = "lab"', GPUCTL_SCHEDULER="home.example:6000").context == "home"
    assert account.load('context = "lab"', GPUCTL_CONTEXT="home").context == "home"
    assert account.load(context="lab", GPUCTL_CONTEXT="home").context == "lab"


def test_an_unknown_context_is_named_with_its_nearest(account: Account) -> None:
    assert account.refusal(context="lba") == '--context: there is no context "lba"; did you mean "lab"?'
    assert 'there is no context "x"' in account.refusal('context = "x"')


@pytest.mark.parametrize("line", ['token_file = "x"', 'ca_file = "x"', "insecure = true", 'gateway = "http://x"'])
def test_a_projects_file_cannot_choose_tokens_or_weaken_encryption(account: Account, line: str) -> None:
    assert "may not be set by a project's file" in account.refusal(line)


def test_a_projects_file_cannot_send_the_token_to_an_address_of_its_own(account: Account) -> None:
    assert "no context of yours has this address" in account.refusal('scheduler = "evil.example"')
    # Where the context or the address is chosen by the account itself, the file's address counts for nothing.
    evil = 'scheduler = "evil.example"'
    assert account.load(evil, context="lab").settings.scheduler[0].host == "lab.example"
    assert account.load(evil, GPUCTL_CONTEXT="home").settings.scheduler[0].host == "home.example"
    assert account.load(evil, GPUCTL_SCHEDULER="mine.example").settings.scheduler[0].host == "mine.example"
    assert account.load(f'context = "lab"\n{evil}').settings.scheduler[0].host == "lab.example"


def test_the_contexts_token_is_relative_to_its_file_and_goes_after_flag_and_variable(
    account: Account,
) -> None:
    tokens = {name: make_token() for name in ("lab", "flag", "variable", "file")}
    for name in ("lab", "flag", "file"):
        write_token_file(account.config / f"{name}.token", tokens[name])

    def used(flags: dict[str, object] | None = None, **environment: str) -> str:
        found = account.load("", flags, more=environment).token(environment)
        assert found is not None
        return next(name for name, token in tokens.items() if token == found.token)

    assert used() == "lab"
    assert used(GPUCTL_TOKEN_FILE=str(account.config / "file.token")) == "file"
    assert used(GPUCTL_TOKEN=tokens["variable"]) == "variable"
    assert used({"token_file": account.config / "flag.token"}, GPUCTL_TOKEN=tokens["variable"]) == "flag"


@pytest.mark.parametrize(
    ("contexts", "problem"),
    [
        ("current = 1", "current: this is not the name"),
        ("contexts = 1", "write each context as a table"),
        ("[contexts]\nlab = 1", "write each context as a table"),
        ("[context.lab]", 'did you mean "contexts"?'),
        ('current = "lab"\n[contexts.lab]\nscheduler = "x:0"', "contexts.toml:3: scheduler: "),
        ('current = "lab"\n[contexts.lab]\nshceduler = "x"', 'did you mean "scheduler"?'),
        ("current = ", "this is not TOML"),
    ],
)
def test_each_mistake_in_the_contexts_is_named(tmp_path: Path, contexts: str, problem: str) -> None:
    assert problem in Account(tmp_path, contexts).refusal()


def test_a_saved_context_is_read_back_and_the_others_stay(account: Account) -> None:
    file = account.config / "contexts.toml"
    values: dict[str, str | bool | int] = {
        "scheduler": "new:1",
        "insecure": True,
        "max_consecutive_timeouts": 3,
    }
    save_context(file, 'a "new" one', values, make_current=True)
    contexts = read_contexts(file, [])
    assert contexts.current == 'a "new" one'
    assert list(contexts.tables) == ["lab", "home", 'a "new" one']
    config = account.load()
    assert config.settings.scheduler == (Address("new", 1),)
    assert config.settings.insecure
    save_context(file, "lab", {"scheduler": "moved"}, make_current=False)
    assert account.load(context="lab").settings.scheduler[0].host == "moved"
    assert account.load().context == 'a "new" one'


def test_the_first_saved_context_becomes_the_current_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "contexts.toml"
    save_context(file, "up", {"scheduler": "127.0.0.1:50051"}, make_current=False)
    assert read_contexts(file, []).current == "up"


def test_a_broken_contexts_file_is_not_overwritten(account: Account) -> None:
    file = account.config / "contexts.toml"
    file.write_text("current = ")
    with pytest.raises(GpufleetError, match="this is not TOML"):
        save_context(file, "x", {}, make_current=True)
    assert file.read_text() == "current = "


IN_JOB = {
    "GPUFLEET_JOB_ID": "41",
    "GPUFLEET_JOB_TOKEN": make_token(),
    "GPUFLEET_SCHEDULER": "head.lab:50051",
    "GPUFLEET_CA_FILE": "/etc/ca.pem",
}


def test_inside_a_job_the_way_is_the_jobs_own_where_the_account_has_no_context(tmp_path: Path) -> None:
    account = Account(tmp_path, contexts="")
    for jobs in ((), ("41",), ("42",)):
        config = account.load(jobs=jobs, more=IN_JOB)
        assert config.settings.scheduler == (Address("head.lab", 50051),)
        assert config.settings.ca_file == Path("/etc/ca.pem")
        assert config.resolved.origins["scheduler"] == "GPUFLEET_SCHEDULER"
        token = config.token(account.environment | IN_JOB)
        assert token is not None and token.token == IN_JOB["GPUFLEET_JOB_TOKEN"]
    assert account.load(GPUFLEET_SCHEDULER="head.lab:50051").settings.scheduler[0].host == "127.0.0.1", (
        "no token, no job"
    )


def test_an_account_with_a_context_is_itself_but_for_commands_about_the_job_alone(tmp_path: Path) -> None:
    account = Account(tmp_path)
    write_token_file(account.config / "lab.token", make_token())
    lab = "lab.example"
    for jobs, host in (((), lab), (("42",), lab), (("41", "42"), lab), (("41",), "head.lab")):
        config = account.load(jobs=jobs, more=IN_JOB)
        assert config.settings.scheduler[0].host == host, jobs
        token = config.token(account.environment | IN_JOB)
        assert token is not None and (token.token == IN_JOB["GPUFLEET_JOB_TOKEN"]) == (host == "head.lab")


@pytest.mark.parametrize(
    ("context", "variables"),
    [("home", {}), (None, {"GPUCTL_CONTEXT": "home"}), (None, {"GPUCTL_SCHEDULER": "home.example:6000"})],
)
def test_what_is_chosen_by_hand_goes_before_the_jobs_own_way_and_never_gets_its_token(
    tmp_path: Path, context: str | None, variables: dict[str, str]
) -> None:
    account = Account(tmp_path)
    config = account.load(context=context, jobs=("41",), more=IN_JOB | variables)
    assert config.settings.scheduler == (Address("home.example", 6000),)
    assert config.token(account.environment | IN_JOB | variables) is None
    own = make_token()
    config = account.load(jobs=("41",), more=IN_JOB, GPUCTL_TOKEN=own)
    assert config.settings.scheduler[0].host == "head.lab"
    found = config.token(IN_JOB | {"GPUCTL_TOKEN": own})
    assert found is not None and found.token == own
