"""A small, real training run: a network learns the height of a wavy surface from a point's two coordinates.

It uses the GPU that its job was given, or the CPU where there is none, and takes a few seconds. Exit code 0 says that
the loss fell to less than a tenth of what it was.

    gpuctl run --gpus 1 -- python docs/examples/train.py
"""

from __future__ import annotations

import argparse
import sys
import warnings

# torch does without NumPy, but says so when it is missing.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

POINTS_PER_STEP = 4096
STEPS_PER_LINE = 20
LOSS_RATIO_MAX = 0.1


def surface(points: Tensor) -> Tensor:
    """The height to learn, for points in the square from -1 to 1."""
    x, y = points[:, :1], points[:, 1:]
    return torch.sin(4 * x) * torch.cos(3 * y) + 0.5 * x * y


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small network and watch its loss.")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: 200)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A step of so small a network has hundreds of moments at which threads wait for each other, and they wait by
    # computing: on a CPU that others use, too, several threads would take many times as long as one.
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    print(f"training on {device.type} ({name}) with torch {torch.__version__}", flush=True)

    layers = (nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    first = last = float("nan")
    for step in range(1, steps + 1):
        points = torch.rand(POINTS_PER_STEP, 2, device=device) * 2 - 1
        loss = nn.functional.mse_loss(network(points), surface(points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if step == 1:
            first = last
        if step == 1 or step % STEPS_PER_LINE == 0 or step == steps:
            print(f"step {step}/{steps} loss {last:.4f}", flush=True)

    # Written so that a loss that is no number fails as well.
    if not last < first * LOSS_RATIO_MAX:
        print(f"the loss did not fall enough: {first:.4f} -> {last:.4f}", file=sys.stderr)
        return 1
    print(f"done: loss {first:.4f} -> {last:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
