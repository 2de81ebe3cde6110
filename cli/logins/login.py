"""`login` and `logout`: a token of one's own that ends by itself."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Option
from ..options import Connection


def login(
    options: Connection,
    user: Annotated[
        str, Option("--user", metavar="NAME", help="Log in by the password of this user, which is asked for.")
    ] = "",
    password: Annotated[
        bool, Option("--password", help="Log in by a password, also where there is a provider.")
    ] = False,
    no_browser: Annotated[
        bool,
        Option("--no-browser", help="Open no browser: take the address that it is sent back to from the terminal."),
    ] = False,
) -> None:
    """Log in with your browser or a password; the token is kept with the context.

    Without a browser on this machine, as over ssh, open the address that is shown in one of yours, log in there, and
    paste the address that it ends at.
    """
    from .login_calls import log_in

    log_in(options.settings(), user, by_password=password or bool(user), opens_browser=not no_browser)


def logout(options: Connection) -> None:
    """End the login of this context; its token is of no use then."""
    from .login_calls import log_out

    log_out(options.settings())
