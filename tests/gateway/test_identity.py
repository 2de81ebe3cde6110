"""What the scheduler is told of where people come from."""

from __future__ import annotations

from gateway.identity import Identities

ONE, OTHER = Identities("token"), Identities("another token")


def test_an_address_is_told_as_a_hash_that_gateways_of_one_token_agree_on() -> None:
    told = ONE.address_of("203.0.113.7")
    assert len(told) == 32 and "203" not in told
    assert told == Identities("token").address_of("203.0.113.7") == ONE.address_of("::ffff:203.0.113.7")
    assert told not in (OTHER.address_of("203.0.113.7"), ONE.address_of("203.0.113.8"))


def test_who_has_one_address_of_ipv6_has_all_of_its_network() -> None:
    assert ONE.address_of("2001:db8:1:2::1") == ONE.address_of("2001:db8:1:2:ffff::9")
    assert ONE.address_of("2001:db8:1:2::1") != ONE.address_of("2001:db8:1:3::1")


def test_who_comes_from_this_machine_or_from_nowhere_is_not_counted() -> None:
    assert {ONE.address_of(each) for each in ("127.0.0.1", "127.8.8.8", "::1", "", "testclient")} == {""}
