"""A small real training job: two spirals, told apart by a network of a few thousand weights.

Runs on the GPU it is given, or on the CPU when it is given a virtual one. Prints a line per twentieth of the way, and
fails when the network has not learned: a demo that cannot fail would show nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import time

import torch
from torch import nn

ACCURACY_MIN = 0.95


def spirals(points: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two noisy spirals, (points, 2), and which spiral each is on, (points,)."""
    turn = torch.rand(points, generator=generator).sqrt() * 3 * math.pi
    label = torch.randint(0, 2, (points,), generator=generator)
    angle = turn + label * math.pi
    place = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / (3 * math.pi)
    return place + 0.01 * torch.randn(points, 2, generator=generator), label


def main() -> None:
    """Train, and say how it goes."""
    parser = argparse.ArgumentParser(description="Trains a small network to tell two spirals apart.")
    parser.add_argument("--steps", type=int, default=3000, help="training steps [3000]")
    steps: int = parser.parse_args().steps

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # so small a network gains nothing from more, and others have work to do
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    job = os.environ.get("GPUFLEET_JOB_ID", "none")
    print(f"torch {torch.__version__} on {name}, job {job}, attempt {os.environ.get('GPUFLEET_ATTEMPT', 'none')}")

    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    places, labels = (tensor.to(device) for tensor in spirals(4096, generator))
    begin = time.monotonic()
    for step in range(1, steps + 1):
        batch = torch.randint(0, len(places), (256,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(places[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 20) == 0:
            print(f"step {step:5d}/{steps}  loss {loss.item():.4f}  {step / (time.monotonic() - begin):6.0f} steps/s")

    places, labels = (tensor.to(device) for tensor in spirals(4096, generator))
    accuracy = (model(places).argmax(dim=1) == labels).float().mean().item()
    print(f"accuracy on points it never saw: {accuracy:.1%}")
    if accuracy < ACCURACY_MIN:
        raise SystemExit(f"it has not learned: {ACCURACY_MIN:.0%} was expected")


if __name__ == "__main__":
    main()
