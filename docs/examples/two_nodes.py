"""A real training run over several nodes: each learns from points of its own, and all keep one network between them.

One process on each node. gpufleet tells it who it is and where the first one listens: NODE_RANK, NNODES, MASTER_ADDR,
MASTER_PORT, as torch.distributed wants them. After each step the gradients are averaged over all nodes (all-reduce), by
NCCL where every process has a GPU, else by gloo. Exit code 0 says that the loss fell and that all nodes ended with the
same network.

    gpuctl run --nodes 2 --gpus-per-node 1 -- python docs/examples/two_nodes.py
"""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta

# torch does without NumPy, but says so when it is missing.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

STEPS, STEPS_PER_LINE = 60, 20
POINTS_PER_STEP = 512
LOSS_RATIO_MAX = 0.5
WAIT = timedelta(minutes=2)
"""How long a node waits for the others: one that never comes ends the run, and does not hold its GPUs for ever."""


def main() -> int:
    rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method="env://", rank=rank, world_size=nodes, timeout=WAIT)
    meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    print(f"node {rank} of {nodes} met the others at {meeting}, {backend} on {device.type}", flush=True)

    torch.manual_seed(0)  # every node begins with the same network …
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)  # … and learns from points of its own
    first = last = float("nan")
    for step in range(1, STEPS + 1):
        points = torch.rand(POINTS_PER_STEP, 2, device=device) * 2 - 1
        heights = torch.sin(2 * points[:, :1]) * torch.cos(2 * points[:, 1:])
        loss = nn.functional.mse_loss(network(points), heights)
        optimizer.zero_grad()
        loss.backward()
        for parameter in network.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= nodes
        optimizer.step()
        average = loss.detach().clone()
        dist.all_reduce(average)
        last = average.item() / nodes
        first = last if step == 1 else first
        if rank == 0 and (step == 1 or step % STEPS_PER_LINE == 0):
            print(f"step {step}/{STEPS} loss {last:.4f}, averaged over {nodes} nodes", flush=True)

    mine = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    of_first = mine.clone()
    dist.broadcast(of_first, src=0)
    is_same = torch.equal(mine, of_first)
    dist.barrier()
    dist.destroy_process_group()
    # Written so that a loss that is no number fails as well.
    if not (is_same and last < first * LOSS_RATIO_MAX):
        print(f"node {rank}: same network {is_same}, loss {first:.4f} -> {last:.4f}", file=sys.stderr)
        return 1
    print(f"node {rank}: done, loss {first:.4f} -> {last:.4f}, the same network on all {nodes} nodes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
