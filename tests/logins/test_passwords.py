"""Logins by password of a file: who is right is let in for a while, and who is not learns nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.config.login_settings import LoginSettings, OidcSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.users_file import (
    FILE_BYTES_MAX,
    FileUser,
    line_of,
    read_users,
    users_in,
    with_user,
    without_user,
)
from scheduler.core.access import LOGINS_PER_USER_MAX
from scheduler.logins.throttle import (
    FORGOTTEN_S,
    FREE_OF_ADDRESS,
    FREE_OF_PAIR,
    FREE_OF_USER,
    KNOWN_MAX,
    PAUSE_S_MIN,
    PasswordTries,
    Throttle,
)
from scheduler.logins.ways import Ways
from tests.e2e.processes import until
from tests.logins.conftest import PASSWORD, house, refused, users_file

pb = scheduler_pb2


async def test_a_user_of_the_file_logs_in_is_listed_and_logs_out(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="admin", boris="user", vera="viewer")
    async with house(tmp_path, login={"users_file": str(file), "valid_for": "1h"}) as at:
        described = await at.stub.DescribeLogin(pb.DescribeLoginRequest())
        assert described.has_passwords and not described.HasField("provider")
        assert described.valid_for.ToTimedelta().total_seconds() == 3600
        for user, role in (("ana", "admin"), ("boris", "user"), ("vera", "viewer")):
            answer = await at.password(user, PASSWORD)
            assert answer.token.expire_time.ToSeconds() - answer.token.create_time.ToSeconds() == 3600
            info = await at.info(answer.secret)
            assert (info.user, info.role) == (user, role)
        listed = {each.user: each for each in await at.tokens() if each.login}
        assert {"ana", "boris", "vera"} == set(listed)
        assert listed["ana"].login.startswith("password ") and listed["ana"].note == "login from 127.0.0.1"
        async with at.fleet.client(answer.secret) as vera:
            ended = (await vera.stub.Logout(pb.LogoutRequest())).token
            assert ended.expire_time.ToMicroseconds() < answer.token.expire_time.ToMicroseconds()
        assert (await refused(at.info(answer.secret))).reason is Reason.TOKEN_REVOKED
        for each in at.fleet.scheduler.data.rglob("*"):
            if each.is_file():
                assert answer.secret.encode() not in each.read_bytes(), each
                assert PASSWORD.encode() not in each.read_bytes(), each


async def test_a_login_holds_over_a_restart_and_a_token_of_an_admin_is_no_login(
    tmp_path: Path, password_hash: str
) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        secret = (await at.password("ana", PASSWORD)).secret
        await at.fleet.scheduler.stop()
        await at.fleet.scheduler.start()
        assert (await at.info(secret)).user == "ana"
        async with at.fleet.client() as admin:
            error = await refused(at._said(admin.stub.Logout, pb.LogoutRequest()))
        assert error.reason is Reason.NOT_A_LOGIN


async def test_wrong_users_and_wrong_passwords_are_told_apart_by_nobody(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        wrong = await refused(at.password("ana", "another one"))
        nobody = await refused(at.password("nobody", PASSWORD))
        assert (wrong.reason, wrong.message) == (nobody.reason, nobody.message)
        assert wrong.reason is Reason.LOGIN_FAILED
        for user in ("ana\n", "a:b", "ana\x1b[2J", "ANA", "☃"):
            assert (await refused(at.password(user, PASSWORD))).reason is Reason.LOGIN_FAILED, user
        assert PASSWORD not in at.fleet.scheduler.log_text() and "another one" not in at.fleet.scheduler.log_text()
        assert "\x1b" not in at.fleet.scheduler.log_text()
        for user, password, field in (("", PASSWORD, "user"), ("ana", "", "password"), ("ana", "x" * 201, "password")):
            error = await refused(at.password(user, password))
            assert error.reason is Reason.INVALID_ARGUMENT and f"password.{field}" in error.message
        assert (await refused(at.login(pb.LoginRequest()))).reason is Reason.INVALID_ARGUMENT


async def test_who_guesses_waits_also_with_the_right_password_and_others_do_not(
    tmp_path: Path, password_hash: str
) -> None:
    clock = [1000.0]
    settings = LoginSettings(users_file=users_file(tmp_path, password_hash, ana="user", boris="user"))
    ways = Ways(settings, OidcSettings(), now_s=lambda: 0.0, monotonic=lambda: clock[0])
    tries = [ways.by_password("ana", f"guess {number}", "10.0.0.1") for number in range(FREE_OF_PAIR + 5)]
    said = await asyncio.gather(*(refused(each) for each in tries))
    assert [each.reason for each in said].count(Reason.LOGIN_FAILED) == FREE_OF_PAIR
    kept = [each for each in said if each.reason is Reason.TOO_MANY_TRIES]
    assert [each.retry_after_s for each in kept] == [PAUSE_S_MIN] * 5
    assert (await refused(ways.by_password("ana", PASSWORD, "10.0.0.1"))).reason is Reason.TOO_MANY_TRIES
    assert (await ways.by_password("boris", PASSWORD, "10.0.0.1")).user == "boris"
    assert (await ways.by_password("ana", PASSWORD, "10.0.0.2")).user == "ana", "whose own address is another"
    clock[0] += PAUSE_S_MIN
    assert (await refused(ways.by_password("ana", "guess again", "10.0.0.1"))).reason is Reason.LOGIN_FAILED
    clock[0] += PAUSE_S_MIN
    assert (await refused(ways.by_password("ana", PASSWORD, "10.0.0.1"))).retry_after_s == PAUSE_S_MIN
    clock[0] += PAUSE_S_MIN
    assert (await ways.by_password("ana", PASSWORD, "10.0.0.1")).user == "ana"


def test_tries_are_bounded_for_a_user_from_everywhere_and_for_an_address() -> None:
    tries = PasswordTries()
    for number in range(FREE_OF_USER):
        tries.begin("ana", f"10.0.{number}.1", 0.0)
    with pytest.raises(GpufleetError, match="too many wrong passwords") as caught:
        tries.begin("ana", "10.1.0.1", 0.0)
    assert caught.value.retry_after_s == PAUSE_S_MIN
    for number in range(FREE_OF_ADDRESS):
        tries.begin(f"user{number}", "10.2.0.1", 0.0)
    with pytest.raises(GpufleetError, match="too many wrong passwords"):
        tries.begin("boris", "10.2.0.1", 0.0)
    tries.begin("boris", "10.2.0.1", PAUSE_S_MIN)
    with pytest.raises(GpufleetError) as longer:
        tries.begin("boris", "10.2.0.1", PAUSE_S_MIN)
    assert longer.value.retry_after_s == 2 * PAUSE_S_MIN
    tries.begin("boris", "10.2.0.1", FORGOTTEN_S * 2)


def test_the_pause_and_what_is_remembered_have_a_bound() -> None:
    throttle = Throttle(1, 300.0)
    for number in range(100):
        throttle.begin("ana", float(number))
    assert throttle.wait_s("ana", 99.0) == 300.0
    for number in range(KNOWN_MAX):
        throttle.begin(f"user{number}", 100.0)
    assert throttle.wait_s("ana", 100.0) == 0.0


async def test_a_gateway_says_where_its_browsers_are_and_nobody_else_does(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    request = pb.LoginRequest(password=pb.PasswordLogin(user="ana", password=PASSWORD), client_address="10.1.2.3")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        assert (await at.login(request)).token.note == "login from 127.0.0.1"
        async with at.fleet.client(at.fleet.scheduler.token("gateway")) as gateway:
            assert (await gateway.stub.Login(request)).token.note == "login from 10.1.2.3"
            request.client_address = "10.1.2.3\n"
            assert (await refused(at._said(gateway.stub.Login, request))).reason is Reason.INVALID_ARGUMENT


async def test_a_user_who_is_removed_changed_or_given_another_role_is_out(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user", boris="user", vera="viewer")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        secrets = {user: (await at.password(user, PASSWORD)).secret for user in ("ana", "boris", "vera")}
        users_file(tmp_path, password_hash, boris="admin", vera="viewer")

        async def are_out() -> bool:
            return {each.user for each in await at.tokens() if each.login and each.is_revoked} == {"ana", "boris"}

        await until("the logins of ana and boris have ended", are_out)
        for user in ("ana", "boris"):
            assert (await refused(at.info(secrets[user]))).reason is Reason.TOKEN_REVOKED
        assert (await at.info(secrets["vera"])).user == "vera"
        file.write_text("ana:user\n")  # nobody could read that; nobody is thrown out for it

        async def is_told() -> bool:
            return "the users stay as they were" in at.fleet.scheduler.log_text()

        await until("the broken file is told", is_told)
        assert (await at.info(secrets["vera"])).user == "vera"
        assert (await at.password("boris", PASSWORD)).token.role == pb.ROLE_ADMIN


async def test_a_name_with_a_token_of_another_role_is_not_taken(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user", gateway="user", boris="user")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        async with at.fleet.client() as admin:
            made = await admin.stub.CreateToken(pb.CreateTokenRequest(user="ana", role=pb.ROLE_ADMIN))
            await admin.stub.CreateToken(pb.CreateTokenRequest(user="boris", role=pb.ROLE_WORKER))
            error = await refused(at.password("ana", PASSWORD))
            assert error.reason is Reason.LOGIN_NAME_TAKEN and "role admin" in error.message
            assert (await refused(at.password("gateway", PASSWORD))).reason is Reason.LOGIN_NAME_TAKEN
            assert (await at.password("boris", PASSWORD)).token.user == "boris"
            await admin.stub.RevokeToken(pb.RevokeTokenRequest(id=made.token.id))
        assert (await at.password("ana", PASSWORD)).token.role == pb.ROLE_USER


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ana:user\n", "users:1: this is no line of a user"),
        ("# us\n\nana:root:x\n", "users:3: 'root' is no role"),
        ("ana:user:HASH\nana:user:HASH\n", "users:2: user ana stands there twice"),
        ("a b:user:HASH\n", "users:1: 'a b' is not a user's name"),
        ("ana:user:$2y$05$aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "no hash of Argon2id"),
        ("ana:user:$argon2id$v=19$m=9999999,t=3,p=4$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaA\n", "more memory"),
        ("ana:user:$argon2id$v=19$m=65536,t=999,p=4$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaA\n", "more memory"),
        ("ana:user:HASH:\n", "this is no line of a user"),
        ("☃:user:HASH\n", "is not a user's name"),
    ],
)
def test_a_wrong_line_of_the_file_is_named_and_nothing_of_a_hash_is_told(
    password_hash: str, text: str, said: str
) -> None:
    with pytest.raises(GpufleetError) as caught:
        users_in(text.replace("HASH", password_hash), "users")
    assert said in caught.value.message and caught.value.reason is Reason.CONFIG_INVALID
    assert "$" not in caught.value.message + caught.value.next_step


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"", 0o644, Reason.TOKEN_FILE_EXPOSED),
        (b"\xff", 0o600, Reason.CONFIG_INVALID),
        (b"#" * (FILE_BYTES_MAX + 1), 0o600, Reason.CONFIG_INVALID),
        (None, 0, Reason.FILE_NOT_FOUND),
    ],
)
def test_a_file_that_others_read_is_too_long_or_is_none_is_refused(
    tmp_path: Path, content: bytes | None, mode: int, reason: Reason
) -> None:
    file = tmp_path / "users"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(GpufleetError) as caught:
        read_users(file)
    assert caught.value.reason is reason and str(file) in caught.value.message


async def test_a_wrong_file_of_users_stops_the_start_with_its_line(tmp_path: Path) -> None:
    file = users_file(tmp_path, "", ana="user")
    with pytest.raises(AssertionError, match=f"left with 1:\n{file}:1: what stands behind ana:user is no hash"):
        async with house(tmp_path, login={"users_file": str(file)}):
            pass


def test_a_line_is_put_in_the_place_of_another_and_all_else_stays(password_hash: str) -> None:
    ana, boris = FileUser("ana", "user", password_hash), FileUser("boris", "admin", password_hash)
    text = with_user("# our people\n", ana)
    assert text == f"# our people\n{line_of(ana)}\n"
    text = with_user(with_user(text, boris), FileUser("ana", "viewer", password_hash))
    found = users_in(text, "users")
    assert [(each.name, each.role) for each in found.values()] == [("ana", "viewer"), ("boris", "admin")]
    assert found["ana"].digest != ana.digest
    assert without_user(text, "ana") == f"# our people\n{line_of(boris)}\n"


async def test_without_settings_nobody_logs_in(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        described = await at.stub.DescribeLogin(pb.DescribeLoginRequest())
        assert not described.has_passwords and not described.HasField("provider")
        assert (await refused(at.password("ana", PASSWORD))).reason is Reason.LOGIN_NOT_SET_UP
        assert (await refused(at.begin())).reason is Reason.LOGIN_NOT_SET_UP


async def test_one_more_login_than_a_user_may_have_ends_the_oldest(tmp_path: Path, password_hash: str) -> None:
    file = users_file(tmp_path, password_hash, ana="user")
    async with house(tmp_path, login={"users_file": str(file)}) as at:
        secrets = [(await at.password("ana", PASSWORD)).secret for _ in range(LOGINS_PER_USER_MAX + 1)]
        assert (await refused(at.info(secrets[0]))).reason is Reason.TOKEN_INVALID
        for secret in (secrets[1], secrets[-1]):
            assert (await at.info(secret)).user == "ana"
        assert len([each for each in await at.tokens() if each.login]) == LOGINS_PER_USER_MAX
