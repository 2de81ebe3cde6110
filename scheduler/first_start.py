"""The first start: tokens in files that only this account can read, and a context with which its gpuctl finds us."""

import getpass
import secrets
from pathlib import Path

from gpufleet.config.contexts import read_contexts, save_context
from gpufleet.config.layers import Problem
from gpufleet.config.paths import contexts_file
from gpufleet.net.addresses import Address
from gpufleet.security.tokens import hash_token, make_token, write_token_file

from .engine import Engine
from .state.access import Role, Token
from .state.events import TokenRequested
from .state.ids import TokenId, UserName

FIRST_TOKENS = (("admin", Role.ADMIN), ("agent", Role.AGENT), ("gateway", Role.GATEWAY))


async def make_first_tokens(engine: Engine, data: Path) -> list[Path]:
    """Make the tokens when there are none yet; answers the files written. The file comes first, then the record:
    a file without a record is made again at the next start."""
    if engine.view.durable.tokens:
        return []
    written: list[Path] = []
    for name, role in FIRST_TOKENS:
        secret = make_token()
        file = data / f"{name}.token"
        write_token_file(file, secret)
        user = UserName(_account() if role is Role.ADMIN else name)
        now = engine.now()
        token = Token(
            id=TokenId(secrets.token_hex(4)),
            user=user,
            role=role,
            digest=hash_token(secret),
            created_at=now,
            note="made at the first start",
        )
        await engine.request(TokenRequested(at=now, by=UserName("scheduler"), token=token))
        written.append(file)
    return written


def make_first_context(data: Path, listening: Address, cert_file: Path | None) -> str:
    """Let gpuctl of this account find this scheduler; answers the context's name, empty when there is one already.

    With a certificate there must be the authority beside it, where `gpuctl config certificate` puts it.
    """
    ca_file = cert_file.with_name(AUTHORITY_FILE) if cert_file is not None else None
    if ca_file is not None and not ca_file.exists():
        return ""
    file = contexts_file()
    problems: list[Problem] = []
    if CONTEXT in read_contexts(file, problems).tables or problems:
        return ""
    host = LOOPBACK.get(listening.host, listening.host)
    values = {"scheduler": str(Address(host, listening.port)), "token_file": str(data / "admin.token")}
    if ca_file is not None:
        values["ca_file"] = str(ca_file.absolute())
    save_context(file, CONTEXT, values, make_current=False)
    return CONTEXT


AUTHORITY_FILE = "ca.pem"
CONTEXT = "local"
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a scheduler that listens everywhere is found from its own machine."""


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "admin"
