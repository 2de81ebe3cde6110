"""The network: a layer of 3×3 looks, a gated layer, and what it changes; alike for every point, `steps` times a frame.

Its weights are not learned but written: each gate multiplies two looks at the neighbourhood, which is all that ink
carried by water needs. Of a slightly compressible fluid with velocity v, pressure p and ink a, per unit of time:

    a' = diffusion ∇²a - v·∇a - fading a
    v' = viscosity ∇²v - c ∇p - drag v
    p' = -c ∇·v + calm ∇²p - sinking p
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

INK, VELOCITY, PRESSURE = slice(0, 3), slice(3, 5), 5
CHANNELS = 6
"""Of the state: how much light three inks take away, the water's velocity in points a unit of time, its pressure."""

TIME = 1.5
"""How much passes in one frame."""

TIME_A_STEP_MAX = 0.75
"""Beyond it waves grow instead of going on."""

DIFFUSION = 0.045
FADING = 0.0012
VISCOSITY = 0.12
DRAG = 0.035
WAVE = 0.55
CALM = 0.10
SINKING = 0.02
SPEED_MAX = 2.0
INK_MAX = 4.0

_LOOKS = 4


class Network(torch.nn.Module):
    """More steps compute the same time more finely; a single one would take too long a leap, and covers half of it."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        here = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        around = torch.tensor([[1.0, 2, 1], [2, -12, 2], [1, 2, 1]]) / 4
        looks = torch.stack([here, across, across.T, around])[:, None]
        left, right, gated = _gates()
        change = torch.cat([_linear(), gated], dim=1) * min(TIME / steps, TIME_A_STEP_MAX)
        self.looks = torch.nn.Buffer(looks.repeat(CHANNELS, 1, 1, 1))
        self.left = torch.nn.Buffer(left[:, :, None, None])
        self.right = torch.nn.Buffer(right[:, :, None, None])
        self.change = torch.nn.Buffer(change[:, :, None, None])

    def forward(self, state: Tensor) -> Tensor:
        """The state after one frame: (sessions, CHANNELS, height, width)."""
        for _ in range(self.steps):
            seen = functional.conv2d(functional.pad(state, (1, 1, 1, 1), mode="replicate"), self.looks, groups=CHANNELS)
            gates = functional.conv2d(seen, self.left) * functional.conv2d(seen, self.right)
            state = state + functional.conv2d(torch.cat([seen, gates], dim=1), self.change)
        ink = state[:, INK].clamp(0.0, INK_MAX)
        velocity = SPEED_MAX * torch.tanh(state[:, VELOCITY] / SPEED_MAX)
        return torch.cat([ink, velocity, state[:, PRESSURE:].clamp(-4.0, 4.0)], dim=1)


def _look(channel: int, look: int) -> int:
    return channel * _LOOKS + look


HERE, ACROSS, DOWN, AROUND = range(_LOOKS)


def _linear() -> Tensor:
    """What each look changes by itself: (CHANNELS, looks)."""
    weights = torch.zeros(CHANNELS, CHANNELS * _LOOKS)
    for ink in range(3):
        weights[ink, _look(ink, AROUND)] = DIFFUSION
        weights[ink, _look(ink, HERE)] = -FADING
    for velocity, slope in ((3, ACROSS), (4, DOWN)):
        weights[velocity, _look(velocity, AROUND)] = VISCOSITY
        weights[velocity, _look(velocity, HERE)] = -DRAG
        weights[velocity, _look(PRESSURE, slope)] = -WAVE
        weights[PRESSURE, _look(velocity, slope)] = -WAVE
    weights[PRESSURE, _look(PRESSURE, AROUND)] = CALM
    weights[PRESSURE, _look(PRESSURE, HERE)] = -SINKING
    return weights


def _gates() -> tuple[Tensor, Tensor, Tensor]:
    """Both factors of each gate, (gates, looks), and what the products change, (CHANNELS, gates): ink goes with the
    water.
    """
    pairs = [(velocity, ink, slope) for velocity, slope in ((3, ACROSS), (4, DOWN)) for ink in range(3)]
    left, right = (torch.zeros(len(pairs), CHANNELS * _LOOKS) for _ in range(2))
    changes = torch.zeros(CHANNELS, len(pairs))
    for gate, (velocity, ink, slope) in enumerate(pairs):
        left[gate, _look(velocity, HERE)] = 1.0
        right[gate, _look(ink, slope)] = 1.0
        changes[ink, gate] = -1.0
    return left, right, changes


def picture(state: Tensor, size: tuple[int, int]) -> Tensor:
    """What it looks like: (sessions, height, width, 3), uint8. Paper, less what the inks take; the water's slope
    shines.
    """
    pressure = state[:, PRESSURE]
    slope = torch.zeros_like(pressure)
    slope[:, 1:, 1:] = 2 * pressure[:, 1:, 1:] - pressure[:, :-1, 1:] - pressure[:, 1:, :-1]
    light = _paper(state.device) * torch.exp(-state[:, INK]) + 0.5 * slope.clamp(-0.3, 0.3)[:, None]
    if light.shape[-2:] != size:
        light = functional.interpolate(light, size=size, mode="bicubic", align_corners=False)
    return (light * 255.0 + 0.5).clamp(0.0, 255.0).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def ink_of(shown: Tensor, size: tuple[int, int]) -> Tensor:
    """The inks that a picture shows, as far as it tells: (sessions, 3, height, width)."""
    light = functional.interpolate(shown.permute(0, 3, 1, 2).float() / 255.0, size=size, mode="area")
    return -torch.log((light / _paper(shown.device)).clamp(0.02, 1.0))


def _paper(device: torch.device) -> Tensor:
    return torch.tensor([0.985, 0.97, 0.935], device=device)[:, None, None]
