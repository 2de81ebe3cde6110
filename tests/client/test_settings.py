"""The settings of a client: each is read from its variable, used, documented, and refused with its name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from gpufleet.client import AsyncInferenceClient, ClientSettings, InferenceClient
from gpufleet.client.core.outcomes import Backend
from gpufleet.client.routes import routes_of
from gpufleet.client.settings import SECONDS_NUMBER, SHARE, VARIABLE_PREFIX, GivenSettings, load_settings
from gpufleet.config.kinds import BOOLEAN, INTEGER, PATH, SIZE, TEXT, TEXTS
from gpufleet.config.layers import variable_name
from gpufleet.config.settings import Setting, settings_of
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import make_token
from tests.rules.test_settings_are_read import unread

ROOT = Path(__file__).resolve().parents[2]
FIELDS = settings_of(ClientSettings)
TOKEN = make_token()


@pytest.fixture(autouse=True)
def _no_contexts_of_this_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def variable(name: str) -> str:
    return variable_name(VARIABLE_PREFIX, name)


def other_text(name: str, described: Setting) -> str:
    """A value for a variable that is not the default."""
    words = {"backend": "cpu", "gpu_mode": "never", "content_type": "audio/mpeg"}
    if name in words:
        return words[name]
    texts = {TEXT: "faces", TEXTS: "h:1,h:2", BOOLEAN: "false" if described.default() else "true", PATH: "/a/b"}
    if described.kind in texts:
        return texts[described.kind]
    if described.kind is SIZE:
        return "5MB"
    return {INTEGER: "7", SECONDS_NUMBER: "7s", SHARE: "0.125"}[described.kind]


@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_is_read_from_its_variable(name: str) -> None:
    text = other_text(name, FIELDS[name])
    environment = {variable(name): text}
    if name.endswith("addresses"):
        environment[variable("model")] = "faces"
    if name == "backoff_first_s":
        text = environment[variable(name)] = "7"
    loaded = load_settings({}, environment)
    assert getattr(loaded, name) == FIELDS[name].read(text, is_text=True) != FIELDS[name].default()


def test_each_field_is_a_setting_that_a_keyword_may_give() -> None:
    names = [field.name for field in dataclasses.fields(ClientSettings)]
    assert names == list(FIELDS) == list(get_type_hints(GivenSettings))


def test_each_setting_is_used_by_the_client() -> None:
    sources = [path for path in (ROOT / "gpufleet/client").rglob("*.py") if path.name != "settings.py"]
    assert unread(ClientSettings, [path.read_text() for path in sources]) == []


def test_each_setting_is_documented() -> None:
    page = (ROOT / "docs/inference-client.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [row(name, described) for name, described in FIELDS.items()], "replace the rows by these"


def row(name: str, described: Setting) -> str:
    default = described.default_text or described.kind.to_toml(described.default()).strip('"')
    return f"| `{name}` | {described.doc} | {default} |"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"retries": -1}, "InferenceClient: retries: -1 is less than the least, 0"),
        ({"retries": "5"}, "InferenceClient: retries: a string is not a whole number"),
        ({"timeout_s": 0}, "InferenceClient: timeout_s: 0 is less than the least, 0.001"),
        ({"timeout_s": float("nan")}, "InferenceClient: timeout_s: "),
        ({"warn_success_below": float("nan")}, "InferenceClient: warn_success_below: it is not a number from 0 to 1"),
        ({"warn_success_below": 95}, "InferenceClient: warn_success_below: 95 is more than the most, 1"),
        ({"backend": "gpus"}, 'InferenceClient: backend: "gpus" is not "auto" or "gpu"'),
        ({"retrys": 5}, 'InferenceClient: retrys: there is no such setting; did you mean "retries"?'),
        ({"addresses": ["a:1", "a:1"], "model": "m"}, "InferenceClient: addresses: a:1 is named twice"),
        ({"addresses": ["a:1"]}, "model: say which model of the workers is meant"),
        ({"addresses": ["ftp://a"], "model": "m"}, "addresses: ftp://a is neither http nor https"),
        ({"addresses": ["http://me:secret@a"], "model": "m"}, "addresses: a: give a host, a port and a path"),
        ({"addresses": ["a:0x"], "model": "m"}, "addresses: a:0x has no port"),
        ({"cpu_addresses": ["a:1"], "model": "m", "addresses": ["a:1"]}, "a:1 is named twice"),
        ({"model": "m", "token": "secret", "gateway": "http://127.0.0.1:1"}, "token: this is not a gpufleet token"),
        ({"token": TOKEN, "token_file": "/x"}, "token_file: give the token itself or its file, not both"),
        ({"backoff_first_s": 20}, "backoff_first_s: 20 s is longer than the longest pause, 10 s"),
        ({}, "model: name a model, or addresses of workers: there is nobody to ask"),
        ({"backend": "callable", "model": "m"}, "backend: name a fallback callable"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(given: dict[str, Any], words: str) -> None:
    for kind in (InferenceClient, AsyncInferenceClient):
        with pytest.raises(GpufleetError) as caught:
            kind(**given)
        assert caught.value.reason is Reason.CONFIG_INVALID
        assert words in caught.value.message and "secret" not in caught.value.message


@pytest.mark.parametrize("name", [name for name in FIELDS if FIELDS[name].kind not in (TEXT, TEXTS, PATH)])
def test_a_wrong_variable_is_refused_with_its_name(name: str) -> None:
    with pytest.raises(GpufleetError, match=variable(name)):
        load_settings({}, {variable(name): "x x"})


def test_a_keyword_goes_before_the_variable_and_seconds_come_in_three_ways() -> None:
    environment = {variable("timeout_s"): "2s", variable("deadline_s"): "250ms"}
    for given in (3, 3.0, "3s", timedelta(seconds=3)):
        loaded = load_settings({"timeout_s": given}, environment)
        assert (loaded.timeout_s, loaded.deadline_s) == (3.0, 0.25)


def test_a_token_is_not_shown() -> None:
    settings = load_settings({"model": "m", "token": TOKEN, "gateway": "http://127.0.0.1:1"}, {})
    (route,) = routes_of(settings, has_callable=False, environment={})
    assert route.origin.token == TOKEN
    assert TOKEN not in repr(settings) and TOKEN not in repr(route)


def test_a_gateway_is_asked_with_the_token_and_workers_without() -> None:
    settings = load_settings({"model": "a b", "cpu_model": "slow", "token": TOKEN, "gateway": "https://g/x"}, {})
    gpu, cpu = routes_of(settings, has_callable=False, environment={})
    assert (gpu.origin.url, gpu.backend, gpu.path) == ("https://g:443/x/m/a%20b", None, "/v2/models/a%20b")
    assert (cpu.origin.url, cpu.backend, cpu.path) == ("https://g:443/x/m/slow", Backend.CPU, "/v2/models/slow")
    assert gpu.origin.token == cpu.origin.token == TOKEN
    direct = load_settings({"model": "m", "token": TOKEN, "addresses": ["[::1]:8000"], "cpu_addresses": ["c:1"]}, {})
    routes = routes_of(direct, has_callable=False, environment={})
    assert [(route.origin.url, route.origin.token) for route in routes] == [
        ("http://[::1]:8000", ""),
        ("http://c:1", ""),
    ]


def test_how_requests_take_gpus_is_said_to_the_gateway_and_not_of_what_runs_on_cpus() -> None:
    given: GivenSettings = {"model": "m", "cpu_model": "slow", "gateway": "http://127.0.0.1:1", "token": TOKEN}
    settings = load_settings({**given, "gpu_mode": "auto", "content_type": "audio/mpeg"}, {})
    gpu, cpu = routes_of(settings, has_callable=False, environment={})
    assert gpu.headers == (("Gpufleet-Gpu-Mode", "auto"), ("Gpufleet-Content-Type", "audio/mpeg"))
    assert cpu.headers == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu_mode": "auto"}, "content_type"),
        ({"gpu_mode": "sometimes"}, "gpu_mode"),
        ({"gpu_mode": "never", "addresses": ["h:1"]}, "gpu_mode"),
        ({"gpu_mode": "auto", "content_type": "audio/mpeg\r\nHost: x"}, "content_type"),
        ({"content_type": "mp3"}, "content_type"),
    ],
)
def test_a_mode_that_says_nothing_is_refused_by_its_name(given: GivenSettings, said: str) -> None:
    with pytest.raises(GpufleetError) as caught:
        load_settings({"model": "m", **given}, {})
    assert said in str(caught.value)


def test_a_token_does_not_leave_the_machine_in_clear() -> None:
    given: GivenSettings = {"model": "m", "token": TOKEN, "gateway": "http://elsewhere:7860"}
    with pytest.raises(GpufleetError) as caught:
        routes_of(load_settings(given, {}), has_callable=False, environment={})
    assert caught.value.reason is Reason.TLS_REQUIRED and TOKEN not in str(caught.value)
    routes_of(load_settings({**given, "insecure": True}, {}), has_callable=False, environment={})


def test_without_a_gateway_named_the_one_beside_the_contexts_scheduler_is_asked(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    folder = tmp_path / "gpufleet"
    folder.mkdir()
    context = f'[contexts.here]\nscheduler = "{{}}"\ntoken_file = "{token_file}"\n'
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    (folder / "contexts.toml").write_text('current = "here"\n' + context.format("127.0.0.1:50051"))
    (route,) = routes_of(load_settings({"model": "m"}, {}), has_callable=False, environment=environment)
    assert (route.origin.url, route.origin.token) == ("http://127.0.0.1:7860/m/m", TOKEN)
    (folder / "contexts.toml").write_text('current = "here"\n' + context.format("head:50051"))
    with pytest.raises(GpufleetError, match="gateway: say where the gateway is, such as https://head:7860"):
        routes_of(load_settings({"model": "m"}, {}), has_callable=False, environment=environment)


def test_the_gateway_that_the_context_names_is_asked_as_gpuctl_asks_it(tmp_path: Path) -> None:
    folder = tmp_path / "gpufleet"
    folder.mkdir()
    told = '[contexts.here]\nscheduler = "127.0.0.1:50960"\ngateway = "http://localhost:7960"\n'
    (folder / "contexts.toml").write_text('current = "here"\n' + told)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}

    def asked(environment: dict[str, str], **given: str) -> str:
        settings = load_settings({"model": "m", "token": TOKEN, **given}, {})  # type: ignore[typeddict-item]
        (route,) = routes_of(settings, has_callable=False, environment=environment)
        return route.origin.url

    assert asked(environment) == "http://localhost:7960/m/m"
    assert asked(environment, gateway="http://127.0.0.1:8860") == "http://127.0.0.1:8860/m/m"


def test_a_client_is_imported_without_torch_numpy_or_grpc() -> None:
    code = "import sys, gpufleet.client; print(sorted({'torch', 'numpy', 'grpc', 'rich', 'typer'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
