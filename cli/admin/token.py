"""`token`: who may do what."""

from __future__ import annotations

from typing import Annotated

from ..app import Family
from ..declaring import Argument, Option
from ..options import Printing

token = Family("token", "Make, list and revoke tokens.")


@token.subcommand("create")
def create(
    options: Printing,
    user: Annotated[
        str,
        Argument(metavar="USER", help="The user that whoever holds the token is; of role node, whose the nodes are."),
    ] = "",
    role: Annotated[
        str,
        Option("--role", metavar="ROLE", help="admin, user, viewer, node, agent, gateway or worker; user by default."),
    ] = "user",
    valid_for: Annotated[
        str | None,
        Option("--valid-for", "--expires", metavar="TIME", help="How long it is valid: 90d. For ever by default."),
    ] = None,
    node: Annotated[
        str,
        Option("--node", metavar="PATTERN", help="Of role node: which nodes it lets join: gpu-*. All by default."),
    ] = "",
    model: Annotated[
        str,
        Option("--model", metavar="PATTERN", help="Of role worker: of which models of USER; of all by default."),
    ] = "",
    uses: Annotated[
        int,
        Option(
            "--uses",
            metavar="N",
            help="Of role node: how many nodes it lets join, any number by default. Of roles worker and "
            "gateway: how many programs may trade it for a credential, which is all that it is good for then.",
        ),
    ] = 0,
    note: Annotated[str, Option("--note", metavar="TEXT", help="What it is for.")] = "",
) -> None:
    """Make a token and print its secret, once and alone on stdout; keep it in a file of mode 0600."""
    from .token_calls import Joining, create_token

    create_token(options.settings(), user, role, valid_for, note, Joining(node, model, uses))


@token.subcommand("list")
def list_all(options: Printing) -> None:
    """List the tokens, without their secrets."""
    from .token_calls import list_tokens

    list_tokens(options.settings())


@token.subcommand("revoke")
def revoke(
    token_id: Annotated[str, Argument(metavar="ID", help="The token's short id, from gpuctl token list.")],
    options: Printing,
) -> None:
    """Make a token useless at once."""
    from .token_calls import revoke_token

    revoke_token(options.settings(), token_id)
