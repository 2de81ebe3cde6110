"""What `login` and `logout` ask and keep."""

from __future__ import annotations

import getpass
import os
import sys
import webbrowser
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gpufleet.v1 import scheduler_pb2

from gpufleet.config.contexts import Contexts, context_of_address, read_contexts, save_context
from gpufleet.config.layers import Problem, config_error
from gpufleet.config.paths import config_dir, contexts_file
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.settings import Settings
from gpufleet.security.code_login import begin_login, checked_code
from gpufleet.security.tokens import TOKEN_VARIABLE, FoundToken, write_token_file

from .. import screen
from .loopback import ADDRESS_CHARS_MAX, Loopback, answer_in, can_listen

WAIT_S_MAX = 300.0
"""How long a browser may take to come back."""

NO_PORT = "http://127.0.0.1/callback"
"""Where a browser of another machine is sent: nothing listens there, and its address is pasted."""

PASSWORD_CHARS_MAX = 200
TOKEN_FOLDER = "logins"


class Nobody(Settings):
    """The same settings, of somebody who has no token yet: an old one would only be refused."""

    def token(self) -> FoundToken | None:
        """None."""
        return None


def log_in(settings: Settings, user: str, *, by_password: bool, opens_browser: bool) -> None:
    """Log in, keep the token, and say who one is."""
    if settings.config.resolved.origins["token_file"].startswith("--"):
        raise invalid("--token-file", "names a token, and a login makes one", next_step="Leave it out.")
    with connected(Nobody(settings.config)) as client:
        ways = client.call(client.scheduler.DescribeLogin, scheduler_pb2.DescribeLoginRequest())
        if by_password or (ways.has_passwords and not ways.HasField("provider")):
            request = _password_login(user)
        elif ways.HasField("provider"):
            request = _provider_login(client, ways.provider.name, opens_browser=opens_browser)
        else:
            raise GpufleetError(Reason.LOGIN_NOT_SET_UP, f"the scheduler at {settings.where} has no logins")
        answer = client.call(client.scheduler.Login, request)
    name, file = _keep(settings, answer.secret)
    role = scheduler_pb2.Role.Name(answer.token.role).removeprefix("ROLE_").lower()
    until = answer.token.expire_time.ToDatetime().isoformat(" ", "minutes")
    print(f"logged in as {answer.token.user} ({role}) until {until} UTC")
    screen.tell(f'The token is in {file}, and context "{name}" uses it. End it with: gpuctl logout')
    if os.environ.get(TOKEN_VARIABLE):
        screen.say(f"{TOKEN_VARIABLE} is set and goes before it: unset {TOKEN_VARIABLE}")


def log_out(settings: Settings) -> None:
    """End the login whose token holds here, and forget the token."""
    token = settings.token()
    if token is None:
        raise GpufleetError(Reason.TOKEN_MISSING, "nobody is logged in here", next_step="Log in with: gpuctl login")
    with connected(settings) as client:
        try:
            answer = client.call(client.scheduler.Logout, scheduler_pb2.LogoutRequest())
            said = f"{answer.token.user} is logged out"
        except GpufleetError as problem:
            if problem.reason not in (Reason.TOKEN_REVOKED, Reason.TOKEN_INVALID) or not _is_own(settings):
                raise
            said = "the login had ended before"
    if _is_own(settings):
        _forget(settings)
    print(said)


def _password_login(user: str) -> scheduler_pb2.LoginRequest:
    if not sys.stdin.isatty():
        name = user or _account()
        password = sys.stdin.readline(PASSWORD_CHARS_MAX + 2).removesuffix("\n").removesuffix("\r")
    else:
        name = user or input(f"User ({_account()}): ").strip() or _account()
        password = getpass.getpass(f"Password of {name} (it is not shown): ")
    if not password:
        raise invalid("password", "is empty", next_step="Type it, or send it as the one line of standard input.")
    return scheduler_pb2.LoginRequest(password=scheduler_pb2.PasswordLogin(user=name, password=password))


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "me"


def _provider_login(client: Client, name: str, *, opens_browser: bool) -> scheduler_pb2.LoginRequest:
    login = begin_login()

    def begun(redirect_uri: str) -> str:
        request = scheduler_pb2.BeginLoginRequest(
            redirect_uri=redirect_uri, state=login.state, nonce=login.nonce, code_challenge=login.challenge
        )
        return client.call(client.scheduler.BeginLogin, request).authorization_url

    if opens_browser and can_listen():
        with closing(Loopback(login.state)) as loopback:
            redirect_uri = loopback.redirect_uri
            url = begun(redirect_uri)
            screen.say(f"Log in with {name} in your browser. If none opens, open this address:\n{url}")
            webbrowser.open(url)
            code = loopback.wait(WAIT_S_MAX)
    else:
        redirect_uri = NO_PORT
        screen.say(f"Open this address in a browser and log in with {name}:\n{begun(redirect_uri)}")
        screen.say("The browser ends at a page that cannot be shown. Paste its address here:")
        code = _pasted_code(login.state)
    way = scheduler_pb2.CodeLogin(code=code, redirect_uri=redirect_uri, code_verifier=login.verifier, nonce=login.nonce)
    return scheduler_pb2.LoginRequest(code=way)


def _pasted_code(state: str) -> str:
    pasted = sys.stdin.readline(ADDRESS_CHARS_MAX + 1).strip()
    answer = answer_in(pasted, state)
    if answer is None:
        step = "Paste the whole address, http://127.0.0.1/callback?…, of this login and no other."
        raise invalid("address", "is not where this login ends", next_step=step)
    return checked_code(*answer)


def _keep(settings: Settings, secret: str) -> tuple[str, Path]:
    """Keep the token with the context of this scheduler, which is made where there is none; its name, and the file."""
    contexts = _contexts()
    name = _context_of(settings, contexts) or _new_name(settings, contexts)
    file = _token_file(name)
    write_token_file(file, secret)
    now = settings.config.settings
    values = {"scheduler": settings.where, **contexts.tables.get(name, {})}
    for key, path in (("ca_file", now.ca_file), ("client_cert_file", now.client_cert_file)):
        if path is not None:
            values[key] = str(path.absolute())
    if now.insecure:
        values["insecure"] = True
    values["token_file"] = str(file)
    save_context(contexts.file, name, values, make_current=False)
    return name, file


def _forget(settings: Settings) -> None:
    contexts = _contexts()
    name = _context_of(settings, contexts)
    values = {key: value for key, value in contexts.tables[name].items() if key != "token_file"}
    save_context(contexts.file, name, values, make_current=False)
    _token_file(name).unlink(missing_ok=True)


def _is_own(settings: Settings) -> bool:
    """Whether the token that holds is the one that `login` keeps with the context."""
    name = _context_of(settings, _contexts())
    used = settings.config.settings.token_file
    return bool(name) and used == _token_file(name) and not os.environ.get(TOKEN_VARIABLE)


def _context_of(settings: Settings, contexts: Contexts) -> str:
    """The context in use, where its scheduler is the one that is spoken to; else one that has this address."""
    used = settings.config.context
    if used and context_of_address(settings.where, Contexts(contexts.file, used, {used: contexts.tables[used]})):
        return used
    return context_of_address(settings.where, contexts)


def _new_name(settings: Settings, contexts: Contexts) -> str:
    base = settings.addresses[0].host
    names = (base, *(f"{base}-{number}" for number in range(2, len(contexts.tables) + 3)))
    return next(name for name in names if name not in contexts.tables)


def _token_file(context: str) -> Path:
    return config_dir() / TOKEN_FOLDER / f"{quote(context, safe='')}.token"


def _contexts() -> Contexts:
    problems: list[Problem] = []
    contexts = read_contexts(contexts_file(), problems)
    if problems:
        raise config_error(problems)
    return contexts
