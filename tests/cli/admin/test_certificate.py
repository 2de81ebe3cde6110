"""`config certificate`: an authority and a certificate, and what to do with them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from tests.cli.conftest import run_here


def names_in(certificate: Path) -> list[str]:
    """The names and addresses that a certificate is for."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    extension = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(each.value) for each in extension.value]


def test_a_certificate_is_for_the_hosts_that_are_named_and_for_this_machine(tmp_path: Path) -> None:
    done = run_here("config", "certificate", "head", "10.0.0.5", "--dir", str(tmp_path / "tls"))
    assert done.code == 0, done.err
    server, key, authority = (tmp_path / "tls" / name for name in ("server.pem", "server.key", "ca.pem"))
    assert names_in(server) == ["head", "10.0.0.5", "localhost", "127.0.0.1", "::1"]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert f"gpuctl scheduler --host 0.0.0.0 --tls-cert {server} --tls-key {key}" in done.text
    assert str(authority) in done.text and "gpuctl agent --scheduler head:50051" in done.text
    # Made again for another host, it is signed by the same authority: nobody has to copy anything again.
    before = authority.read_bytes()
    assert run_here("config", "certificate", "other", "--dir", str(tmp_path / "tls")).code == 0
    assert authority.read_bytes() == before and names_in(server)[0] == "other"


def test_a_certificate_is_made_in_the_schedulers_data_folder_before_its_settings_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GPUCTL_SCHEDULER_HOST", "0.0.0.0")
    assert run_here("config", "certificate").code == 0
    assert (tmp_path / "data" / "tls" / "server.pem").exists()


def test_what_is_no_host_and_a_folder_that_cannot_be_written_are_refused() -> None:
    assert "is not an address" in run_here("config", "certificate", "not a host").err
    assert "/proc/tls cannot be written" in run_here("config", "certificate", "head", "--dir", "/proc/tls").err


@pytest.mark.parametrize("identity", ["node:gpu1", "user:ann@lab.example", "job"])
def test_a_certificate_of_a_client_is_one_file_with_its_key(tmp_path: Path, identity: str) -> None:
    done = run_here("config", "certificate", "--client", identity, "--dir", str(tmp_path))
    assert done.code == 0, done.err
    file = tmp_path / f"{identity.replace(':', '-')}.pem"
    assert names_in(file) == [f"gpufleet:{identity}"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in done.text and "--client-cert-file" in done.text and "client_ca_file" in done.text


@pytest.mark.parametrize("identity", ["gpu1", "node:", "admin:ann", "job:7", "node:a/b"])
def test_who_can_have_no_certificate_is_refused_and_nothing_is_made(tmp_path: Path, identity: str) -> None:
    refused = run_here("config", "certificate", "--client", identity, "--dir", str(tmp_path / "tls"))
    assert refused.code == 2 and "--client" in refused.err
    assert not (tmp_path / "tls").exists()
