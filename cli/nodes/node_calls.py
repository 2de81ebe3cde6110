"""What `nodes`, `drain` and `resume` ask and show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.reading import read
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.requests import in_options
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import counted, parse_size

from .. import screen
from ..printing import print_answer, print_devices, print_list
from ..render import words
from ..render.nodes import free_screen, nodes_screen

PAGE_SIZE = 1000


@contextmanager
def nodes_as_typed(option: str = "--node") -> Iterator[None]:
    """A refusal of a node's name names the option that was typed in place of the request's field."""
    try:
        yield
    except GpufleetError as problem:
        raise in_options(problem, lambda field: option if field.startswith("nodes[") else field) from None


def all_nodes(client: Client, names: Sequence[str] = (), *, fresh: bool = False) -> list[node_pb2.Node]:
    """The nodes of these names, or all, in the order of their names."""
    request = scheduler_pb2.ListNodesRequest(names=names, page_size=PAGE_SIZE, fresh=fresh)
    return [node for page in all_pages(client, client.scheduler.ListNodes, request) for node in page.nodes]


def free_request(
    names: Sequence[str], min_memory: str | None, max_utilization: int | None, *, fresh: bool, is_free: bool
) -> scheduler_pb2.ListDevicesRequest:
    """What `nodes --free` asks. Raises INVALID_ARGUMENT for a filter of free GPUs without --free."""
    for option, given in (("--min-memory", min_memory), ("--max-utilization", max_utilization)):
        if given is not None and not is_free:
            raise invalid(option, "it filters free GPUs", next_step="Add --free.")
    if max_utilization is not None and not 0 <= max_utilization <= 100:
        raise invalid("--max-utilization", f"{max_utilization} is not 0 to 100", next_step="Write 50, for instance.")
    return scheduler_pb2.ListDevicesRequest(
        only_free=True,
        min_memory_bytes=0 if min_memory is None else read("--min-memory", parse_size, min_memory),
        max_utilization_percent=max_utilization,
        nodes=names,
        fresh=fresh,
        page_size=PAGE_SIZE,
    )


def show_free(settings: Settings, request: scheduler_pb2.ListDevicesRequest) -> None:
    """Print the free GPUs of all nodes, best first."""
    with connected(settings) as client:
        pages = all_pages(client, client.scheduler.ListDevices, request)
        with nodes_as_typed():
            devices = [device for page in pages for device in page.devices]
    print_devices(settings.format, devices, lambda look: free_screen(devices, look))


def show_nodes(settings: Settings, names: Sequence[str], *, fresh: bool = False) -> None:
    """Print the nodes."""
    with connected(settings) as client:
        nodes = all_nodes(client, names, fresh=fresh)
        missing = sorted(set(names) - {node.name for node in nodes})
        if missing:
            known = [node.name for node in all_nodes(client)]
            raise GpufleetError(
                Reason.NODE_NOT_FOUND, f'there is no node "{missing[0]}"{did_you_mean(missing[0], known)}'
            )
    print_list(
        settings.format,
        nodes,
        whole=scheduler_pb2.ListNodesResponse(nodes=nodes),
        name=lambda node: node.name,
        lines=lambda look: nodes_screen(nodes, screen.local_now(), look),
    )
    if settings.format == "table" and any(device.is_free for node in nodes for device in node.devices):
        screen.tell("The free GPUs, best first: gpuctl nodes --free · every GPU, live: gpuctl top")


def update_node(settings: Settings, name: str, *, is_draining: bool, reason: str) -> None:
    """Drain or resume a node, and say what came of it."""
    with connected(settings) as client:
        request = scheduler_pb2.UpdateNodeRequest(node=name, is_draining=is_draining, reason=reason)
        answer = client.call_again(client.scheduler.UpdateNode, request)
    print_answer(settings.format, answer, name, lambda _: [_updated(answer, name, is_draining=is_draining)])


def _updated(answer: scheduler_pb2.UpdateNodeResponse, name: str, *, is_draining: bool) -> str:
    running = len(answer.node.job_ids)
    if is_draining:
        goes_on = f"; {counted(running, 'job')} on it {'goes' if running == 1 else 'go'} on" if running else ""
        return f"node {name} {'drains' if answer.changed else 'was draining already'}{goes_on}"
    state = words.node_state(answer.node.state).text
    return f"node {name} {'takes work again' if answer.changed else 'was taking work already'} (state: {state})"


def approve_node(settings: Settings, name: str) -> None:
    """Let a node take part, and say whether that changed anything."""
    with connected(settings) as client:
        answer = client.call_again(client.scheduler.ApproveNode, scheduler_pb2.ApproveNodeRequest(node=name))
    said = f"node {name} takes part" if answer.changed else f"node {name} was taking part already"
    print_answer(settings.format, answer, name, lambda _: [said])


def revoke_node(settings: Settings, name: str, reason: str) -> None:
    """Make a node's credential useless, and say how it comes back."""
    with connected(settings) as client:
        request = scheduler_pb2.RevokeNodeRequest(node=name, reason=reason)
        answer = client.call_again(client.scheduler.RevokeNode, request)
    done = f"the credential of node {name} {'is revoked' if answer.changed else 'was revoked already'}"
    said = f"{done}; to let it in again: gpuctl nodes approve {name}"
    print_answer(settings.format, answer, name, lambda _: [said])


def forget_node(settings: Settings, name: str) -> None:
    """Forget a node, and say what became of its jobs."""
    with connected(settings) as client:
        request = scheduler_pb2.ForgetNodeRequest(node=name)
        answer = client.call_again(client.scheduler.ForgetNode, request)
    lines = [f"node {name} is forgotten"]
    if answer.ended_job_ids:
        lines.append(f"ended as NODE_LOST: {', '.join(map(str, answer.ended_job_ids))}")
    if answer.requeued_job_ids:
        lines.append(f"back in the queue: {', '.join(map(str, answer.requeued_job_ids))}")
    print_answer(settings.format, answer, name, lambda _: lines)
