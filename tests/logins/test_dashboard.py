"""Logging in to the dashboard in a real browser: by a password, with a provider, and what is told where it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import async_playwright, expect

from building import page
from tests.dashboard.house import Visitor
from tests.gateway.stage import Stage
from tests.logins.conftest import PASSWORD, oidc, users_file
from tests.logins.gateways import gateway_stage
from tests.logins.provider import Provider
from tests.page.theatre import DESKTOP, chromium, flags

pytestmark = pytest.mark.slow


@asynccontextmanager
async def visitor_of(stage: Stage) -> AsyncIterator[Visitor]:
    """Somebody with a browser of their own; in the end the page must not have complained."""
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed, or does not start")
    page.build()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=flags())
        try:
            visitor = Visitor(await (await browser.new_context(**DESKTOP)).new_page(), stage.gateway)
            yield visitor
            assert not visitor.problems, "\n".join(visitor.problems)
        finally:
            await browser.close()


async def test_a_password_and_a_provider_lead_to_the_view_that_one_wanted(
    tmp_path: Path, password_hash: str, provider: Provider
) -> None:
    login = {"users_file": str(users_file(tmp_path, password_hash, vera="viewer"))}
    async with (
        gateway_stage(tmp_path, login=login, oidc=oidc(provider, name="Example Lab")) as stage,
        visitor_of(stage) as somebody,
    ):
        at = somebody.page
        await somebody.open("queue")
        user, password, error = at.get_by_label("User"), at.get_by_label("Password"), at.locator("#password-error")
        await expect(user).to_be_focused()
        await somebody.check("the login with all ways")
        by_password = somebody.button("Log in with password")
        await by_password.click()
        await expect(error).to_have_text("Enter your user name.")
        await user.fill("vera")
        await by_password.click()
        await expect(error).to_have_text("Enter your password.")
        await password.fill("not this one")
        await by_password.click()
        await expect(error).to_contain_text("The user or the password is not right.")
        await expect(password).to_be_focused()
        await password.fill(PASSWORD)
        await password.press("Enter")
        await expect(somebody.heading).to_have_text("Queue")
        await expect(at.locator(".person .who")).to_have_text("vera · viewer")
        assert PASSWORD not in await at.evaluate("document.cookie + JSON.stringify(localStorage)")
        await at.reload()
        await expect(at.locator(".person .who")).to_have_text("vera · viewer")
        await somebody.button("Log out").click()
        await expect(password).to_have_value("")
        # The address still names the queue, and the provider's page is behind it.
        await somebody.button("Log in with Example Lab").click()
        await at.get_by_role("button", name="ana-1", exact=True).click()
        await expect(somebody.heading).to_have_text("Queue")
        await expect(at.locator(".person .who")).to_have_text("ana · admin")
        await at.reload()
        await expect(at.locator(".person .who")).to_have_text("ana · admin")
        # An address of the provider's that is opened again tells nothing to who is in.
        await at.goto(f"http://{stage.gateway}/api/v1/login/callback?code=x&state=y")
        await expect(at.locator(".person .who")).to_have_text("ana · admin")


async def test_why_nobody_is_in_is_told_with_what_to_do(tmp_path: Path, provider: Provider) -> None:
    async with gateway_stage(tmp_path, oidc=oidc(provider)) as stage, visitor_of(stage) as somebody:
        at, why = somebody.page, somebody.page.locator("#login .trouble")
        with_provider = somebody.button("Log in with single sign-on")
        await somebody.open("submit")
        await expect(with_provider).to_be_focused()
        await expect(at.get_by_label("Password")).to_be_hidden()
        for subject, told in (
            ("Nobody: do not log in", "The provider did not log you in: access_denied"),
            ("guest-3", "None of your groups may use this fleet. Ask an admin"),
        ):
            await with_provider.click()
            await at.get_by_role("button", name=subject, exact=True).click()
            await expect(why).to_contain_text(told, ignore_case=True)
            await somebody.check(f"a login that failed: {told}")
            await at.reload()
            await expect(with_provider).to_be_focused()
            await expect(why).to_be_hidden()
        provider.lies.answers["/token"] = lambda: ("away", 503)
        await with_provider.click()
        await at.get_by_role("button", name="ana-1", exact=True).click()
        await expect(why).to_contain_text("try again", ignore_case=True)
        # A token goes on whatever becomes of the provider.
        await at.get_by_label("Your token").fill(stage.fleet.scheduler.token("admin"))
        await somebody.button("Log in with token").click()
        await expect(somebody.heading).to_have_text("Submit a job")
