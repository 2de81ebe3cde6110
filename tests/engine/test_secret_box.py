"""The box that secrets are sealed in: its key, what it is good for, and what is said where it is of no use."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.secret_box import KEY_FILE, SecretBox
from scheduler.state.access import Secret
from scheduler.state.ids import SecretName, UserName
from scheduler.state.units import Instant

ADA, NAME, VALUE = UserName("ada"), SecretName("HF_TOKEN"), "hf_välue\n"


def sealed(box: SecretBox) -> Secret:
    value = box.seal(ADA, NAME, VALUE, is_first=True)
    return Secret(user=ADA, name=NAME, set_at=Instant(1), set_by=ADA, sealed=value)


def refused(box: SecretBox, secret: Secret) -> GpufleetError:
    with pytest.raises(GpufleetError) as caught:
        box.open(secret)
    assert caught.value.reason is Reason.SECRETS_UNAVAILABLE
    assert VALUE not in str(caught.value)
    return caught.value


def test_what_is_sealed_opens_also_after_a_restart_and_is_never_the_same_twice(tmp_path: Path) -> None:
    secret = sealed(box := SecretBox(tmp_path / KEY_FILE))
    assert SecretBox(tmp_path / KEY_FILE).open(secret) == VALUE
    assert sealed(box).sealed != secret.sealed
    assert VALUE.encode() not in secret.sealed
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_value_opens_for_its_own_user_and_name_and_unchanged_alone(tmp_path: Path) -> None:
    secret = sealed(box := SecretBox(tmp_path / KEY_FILE))
    for other in (
        replace(secret, user=UserName("bob")),
        replace(secret, name=SecretName("OTHER")),
        replace(secret, sealed=secret.sealed[:-1] + bytes([secret.sealed[-1] ^ 1])),
    ):
        assert "was changed" in refused(box, other).message


@pytest.mark.parametrize("left", [0, 1, 8, 9, 20, 21, 30])
def test_what_was_cut_is_refused_in_a_sentence(tmp_path: Path, left: int) -> None:
    secret = sealed(box := SecretBox(tmp_path / KEY_FILE))
    refused(box, replace(secret, sealed=secret.sealed[:left]))


def test_a_missing_key_is_said_and_none_is_made_beside_what_another_sealed(tmp_path: Path) -> None:
    secret = sealed(SecretBox(tmp_path / KEY_FILE))
    (tmp_path / KEY_FILE).unlink()
    box = SecretBox(tmp_path / KEY_FILE)
    assert str(tmp_path / KEY_FILE) in refused(box, secret).message
    with pytest.raises(GpufleetError) as caught:
        box.seal(ADA, SecretName("NEW"), VALUE, is_first=False)
    assert caught.value.reason is Reason.SECRETS_UNAVAILABLE
    assert not (tmp_path / KEY_FILE).exists()


def test_another_key_is_told_from_a_changed_value(tmp_path: Path) -> None:
    secret = sealed(SecretBox(tmp_path / KEY_FILE))
    sealed(other := SecretBox(tmp_path / "other.key"))
    assert "another key" in refused(other, secret).message


def test_a_key_that_others_can_read_or_that_is_none_is_not_used(tmp_path: Path) -> None:
    secret = sealed(SecretBox(tmp_path / KEY_FILE))
    (tmp_path / KEY_FILE).chmod(0o644)
    assert "chmod" in refused(SecretBox(tmp_path / KEY_FILE), secret).next_step
    (tmp_path / KEY_FILE).chmod(0o600)
    (tmp_path / KEY_FILE).write_text("none\n")
    assert "hexadecimal" in refused(SecretBox(tmp_path / KEY_FILE), secret).message


def test_without_the_package_secrets_alone_are_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = sealed(SecretBox(tmp_path / KEY_FILE))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    box = SecretBox(tmp_path / KEY_FILE)
    assert "gpufleet[secrets]" in refused(box, secret).next_step
    box.check([])
    assert not caplog.records
    box.check([secret])
    assert "cryptography" in caplog.text
