"""`up` and `down`: a whole gpufleet on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..declaring import Exit, Option

GATEWAY_PORT = 7860

Data = Annotated[
    Path | None,
    Option("--data", metavar="DIR", help="Where everything is kept; each program's usual folder by default."),
]


def up(
    virtual_gpus: Annotated[
        str,
        Option(
            "--virtual-gpus",
            metavar="N",
            help="Virtual GPUs that run on the CPU. By default one, where there is no real GPU.",
        ),
    ] = "auto",
    data: Data = None,
    scheduler_port: Annotated[
        int, Option("--scheduler-port", metavar="PORT", min=0, max=65535, help="50051 by default; 0 takes a free one.")
    ] = 50051,
    gateway_port: Annotated[
        int,
        Option(
            "--port",
            "--gateway-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="The page; 7860 by default, 0 takes a free one.",
        ),
    ] = GATEWAY_PORT,
    grpc_port: Annotated[
        int | None,
        Option(
            "--grpc-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Served models over gRPC; the port after the page's by default, 0 takes a free one.",
        ),
    ] = None,
    gateway_host: Annotated[
        str,
        Option("--gateway-host", metavar="HOST", help="Who reaches the page: 0.0.0.0 is every network's machines."),
    ] = "127.0.0.1",
    insecure: Annotated[
        bool, Option("--insecure", help="Show the page without TLS, where the network is trusted.")
    ] = False,
    no_gateway: Annotated[bool, Option("--no-gateway", help="No page for browsers.")] = False,
    no_agent: Annotated[bool, Option("--no-agent", help="Only the scheduler: this machine gives no GPUs.")] = False,
    shared_account: Annotated[
        bool,
        Option(
            "--shared-account",
            help="Run the jobs of all users, as this account. Each of them can then read, change and end whatever it "
            "can, and take the admin's token from the scheduler's folder.",
        ),
    ] = False,
    detach: Annotated[bool, Option("--detach", help="Leave it running in the background.")] = False,
) -> None:
    """Start a scheduler, an agent and the page at http://localhost:7860, and stay until Ctrl-C.

    Your jobs run as this account, and nobody else's do unless you say so.

    Where one of them has died, it starts that again as it was, and keeps the others.

    Running jobs outlive Ctrl-C and are taken back by the next gpuctl up; a second Ctrl-C within 3 s ends them.
    """
    from gpufleet.errors import invalid

    from ..local.folders import folders_of
    from ..local.gateway import Gateway
    from ..local.up import bring_up
    from ..local.up_options import UpOptions

    if virtual_gpus != "auto" and not (virtual_gpus.isascii() and virtual_gpus.isdigit()):
        raise invalid("--virtual-gpus", f'"{virtual_gpus}" is not a whole number')
    options = UpOptions(
        folders=folders_of(data),
        port=scheduler_port,
        virtual_gpus=virtual_gpus,
        with_agent=not no_agent,
        gateway=None if no_gateway else Gateway(gateway_host, gateway_port, grpc_port, is_insecure=insecure),
        shares_account=shared_account,
    )
    raise Exit(bring_up(options, is_detached=detach))


def down(
    data: Data = None,
    yes: Annotated[bool, Option("--yes", "-y", "--force", help="End running jobs without asking.")] = False,
    keep_jobs: Annotated[
        bool, Option("--keep-jobs", help="Let running jobs go on; the next gpuctl up takes them back.")
    ] = False,
) -> None:
    """Stop what gpuctl up started. Asks before it ends running jobs.

    Without --data it is what the context in use was started with.
    """
    from ..local.up import bring_down

    raise Exit(bring_down(data, is_sure=yes, keeps_jobs=keep_jobs))
