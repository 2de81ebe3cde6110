"""A known load on the first GPU that is visible: so much memory, and matrix products until the time is over.

Prints one line of JSON when the load is there: which GPU it sees, how many, and what it holds.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch

SIDE = 8192


def main() -> None:
    """Hold and compute."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--gigabytes", type=float, default=2.0)
    flags.add_argument("--seconds", type=float, default=10.0)
    given = flags.parse_args()
    device = torch.device("cuda:0")
    kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    one, other = (torch.randn(SIDE, SIDE, device=device, dtype=kind) for _ in range(2))
    held = torch.ones(max(0, round(given.gigabytes * 1e9) - 3 * one.nbytes), dtype=torch.uint8, device=device)
    product = one @ other
    torch.cuda.synchronize()
    properties = torch.cuda.get_device_properties(0)
    told = {
        "uuid": f"GPU-{properties.uuid}",
        "count": torch.cuda.device_count(),
        "held_bytes": torch.cuda.memory_allocated(),
        "pid": os.getpid(),
    }
    print(json.dumps(told), flush=True)
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        for _ in range(8):
            product = one @ other
        torch.cuda.synchronize()
    assert held[-1].item() == 1 and product.shape == one.shape


if __name__ == "__main__":
    main()
