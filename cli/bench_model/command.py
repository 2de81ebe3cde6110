"""`bench-model` and `bench-endpoint`: measure what is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..asking.command import Address, Gateway, Model
from ..declaring import Argument, Exit, Option
from ..options import Printing

Requests = Annotated[
    int | None, Option("--requests", metavar="N", min=1, help="A row ends after so many, in place of a time.")
]
Duration = Annotated[str | None, Option("--duration", metavar="TIME", help="How long a row is, 10s by default.")]
Concurrency = Annotated[
    str | None,
    Option(
        "--concurrency", metavar="N,…", help="A row each: requests that are under way at a time; 1,4,16 by default."
    ),
]
Rate = Annotated[
    str | None,
    Option(
        "--rate",
        metavar="R,…",
        help="A row each, in place of --concurrency: so many requests are due a second, and their latency counts from "
        "then, whenever they can be sent.",
    ),
]
WarmUp = Annotated[
    int, Option("--warm-up", metavar="N", min=0, max=100_000, help="Requests before each row that do not count.")
]
TimeOut = Annotated[
    str | None, Option("--timeout", metavar="TIME", help="A request that takes longer has failed; 60s by default.")
]
Picture = Annotated[
    Path | None, Option("--picture", metavar="FILE", help="Draw throughput and latency into this file, an SVG.")
]


def bench_model(
    options: Printing,
    model: Model,
    file: Annotated[
        Path | None, Argument(metavar="[FILE]", help="What is asked: a file, its bytes, or .jsonl, an item a line.")
    ] = None,
    text: Annotated[list[str] | None, Option("--text", metavar="TEXT", help="Ask about this text; repeatable.")] = None,
    item: Annotated[
        list[str] | None, Option("--item", metavar="JSON", help="Ask about this value of JSON; repeatable.")
    ] = None,
    read_as: Annotated[
        str | None, Option("--as", metavar="KIND", help="What the file holds: bytes, text, json or jsonl.")
    ] = None,
    requests: Requests = None,
    duration: Duration = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    batch_size: Annotated[
        int, Option("--batch-size", metavar="N", min=1, max=100_000, help="Items of each request.")
    ] = 1,
    warm_up: WarmUp = 10,
    timeout: TimeOut = None,
    compare_cpu: Annotated[
        bool,
        Option("--compare-cpu", help="The same against CPU workers: --cpu-model, or the class served without GPUs."),
    ] = False,
    cpu_model: Annotated[
        str | None, Option("--cpu-model", metavar="NAME", help="The model that runs on CPUs, for --compare-cpu.")
    ] = None,
    cpu_address: Annotated[
        list[str] | None,
        Option("--cpu-address", metavar="HOST:PORT", help="A worker on CPUs, for --compare-cpu; repeatable."),
    ] = None,
    picture: Picture = None,
    address: Address = None,
    gateway: Gateway = None,
) -> None:
    """Measure how many requests a served model answers, and how fast.

    A row for each concurrency or rate: throughput, latencies, and what the model's GPUs did meanwhile. Nothing is asked
    again: a request that fails has failed. Exit code 1 says that some did. docs/measure-a-model.md says what each
    figure is. For instance: gpuctl bench-model faces photo.jpg --concurrency 1,8,64
    """
    import asyncio

    from ..batch.given import own_job, settings_given
    from .asked import check_picture, items_to_ask
    from .plan import shapes_of, timeout_s_of
    from .program import bench_model as measure

    shapes = shapes_of(concurrency, rate, requests, duration, timeout_s := timeout_s_of(timeout))
    items = items_to_ask(file, text or [], item or [], read_as)
    check_picture(picture)
    settings = options.settings(jobs=own_job())
    given = settings_given(settings, model, address or [], gateway, batch_size)
    given["timeout_s"] = timeout_s
    if cpu_model is not None:
        given["cpu_model"] = cpu_model
    if cpu_address:
        given["cpu_addresses"] = cpu_address
    report = asyncio.run(measure(given, items, shapes, warm_up=warm_up, compares_cpu=compare_cpu, fleet=settings))
    raise Exit(_told(report, settings.format, picture))


def bench_endpoint(
    options: Printing,
    url: Annotated[str, Argument(metavar="URL", help="What is asked, by GET.")],
    data: Annotated[
        str | None, Option("--data", metavar="TEXT|@FILE", help="Send this by POST; of @FILE its bytes.")
    ] = None,
    header: Annotated[
        list[str] | None, Option("-H", "--header", metavar="'NAME: VALUE'", help="A header; repeatable.")
    ] = None,
    send_token: Annotated[
        bool, Option("--send-token", help="Send your token as the bearer: only to a gateway of your fleet.")
    ] = False,
    requests: Requests = None,
    duration: Duration = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    warm_up: WarmUp = 10,
    timeout: TimeOut = None,
    picture: Picture = None,
) -> None:
    """Measure how many requests any HTTP endpoint answers, and how fast.

    As gpuctl bench-model does; a request is an item, and a status from 200 to 299 a success.
    For instance: gpuctl bench-endpoint http://127.0.0.1:8000/health --rate 50,100
    """
    import asyncio

    from .asked import check_picture, endpoint_request
    from .plan import client_settings, shapes_of, timeout_s_of
    from .program import bench_endpoint as measure

    shapes = shapes_of(concurrency, rate, requests, duration, timeout_s := timeout_s_of(timeout))
    check_picture(picture)
    settings = options.settings()
    request, shown = endpoint_request(settings, url, data, header or [], sends_token=send_token)
    report = asyncio.run(measure(request, client_settings(timeout_s), shapes, warm_up=warm_up, shown=shown))
    raise Exit(_told(report, settings.format, picture))


def _told(report: object, form: str, picture: Path | None) -> int:
    from ..errors import FAILED
    from .asked import write_picture
    from .picture import drawn
    from .program import Report
    from .show import print_report

    assert isinstance(report, Report)
    if picture is not None:
        write_picture(picture, drawn(report))
    print_report(report, form)
    return FAILED if report.has_failures else 0
