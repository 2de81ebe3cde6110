"""A model that answers requests: when somebody speaks in a sound file. It needs NumPy.

    gpuctl serve speech:Speech --predict
    gpuctl infer Speech talk.wav

A voice swings at 70 to 400 Hz, with all that is above it, and rises out of what else is heard. So a moment counts as
voiced where the sound repeats itself at such a pace, and is louder than the quiet moments of the file; moments that lie
together are a segment. An item is the content of a WAV file (PCM, 16 bits), its answer a list of [from, to] in seconds.
A network that was trained for it hears better in noise, and would be asked in the same way.
"""

import io
import struct
import wave

import numpy as np

from gpufleet.predict import TensorSpec

RATE = 8_000
"""Samples a second that are looked at."""

FRAME, STEP = 320, 80
"""40 ms, every 10 ms."""

LAGS = slice(RATE // 400, RATE // 70)
REPEATS_MIN = 0.5
"""How much a voiced moment is like itself one swing later; 1 is wholly."""

LOUDER_DB = 6.0
GAP_S, SEGMENT_S, MARGIN_S = 0.3, 0.12, 0.05
"""Shorter pauses are within a segment, shorter segments are none, and each is wider by this at both ends."""

SECONDS_MAX = 600


def samples_of(file: bytes) -> np.ndarray:
    """The sound at RATE, one channel, -1 to 1. Raises ValueError for what is no such file."""
    try:
        with wave.open(io.BytesIO(file)) as sound:
            rate, channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
            if width != 2 or not RATE <= rate <= 192_000:
                raise ValueError(f"it has {8 * width} bits and {rate} Hz, and should have 16 and at least {RATE}")
            if sound.getnframes() > SECONDS_MAX * rate:
                raise ValueError(f"it is longer than {SECONDS_MAX} s")
            data = sound.readframes(sound.getnframes())
    except (wave.Error, struct.error, EOFError, RuntimeError, ArithmeticError):
        raise ValueError("this is no WAV file that can be read") from None
    whole_frames = data[: len(data) // (2 * channels) * 2 * channels]
    samples = np.frombuffer(whole_frames, "<i2").reshape(-1, channels).mean(1) / 32768
    # The mean of what lies between two of our samples keeps higher sounds from showing up as lower ones.
    ends = np.arange(1, int(len(samples) * RATE / rate) + 1) * rate // RATE
    sums = np.concatenate([[0.0], np.cumsum(samples)])
    return np.diff(sums[np.concatenate([[0], ends])]) / max(1, rate // RATE)


def voiced(sound: np.ndarray) -> np.ndarray:
    """For each step whether somebody speaks."""
    if len(sound) < 2 * FRAME:
        return np.zeros(0, bool)
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::STEP]
    frames = (frames - frames.mean(1, keepdims=True)) * np.hanning(FRAME)
    power = np.abs(np.fft.rfft(frames, 2 * FRAME)) ** 2
    alike = np.fft.irfft(power)[:, : FRAME // 2]
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(FRAME), 2 * FRAME)) ** 2)[: FRAME // 2]
    repeats = (alike / np.maximum(alike[:, :1], 1e-9) / (window / window[0]))[:, LAGS].max(1)
    loud = 10 * np.log10(alike[:, 0] + 1e-6)
    return (repeats > REPEATS_MIN) & (loud > np.quantile(loud, 0.1) + LOUDER_DB)


def segments(spoken: np.ndarray) -> list[list[float]]:
    """What lies together, as [from, to] in seconds."""
    found: list[list[float]] = []
    for place in (np.flatnonzero(spoken) * STEP / RATE).tolist():
        if found and place - found[-1][1] <= GAP_S:
            found[-1][1] = place
        else:
            found.append([place, place])
    whole = [each for each in found if each[1] - each[0] >= SEGMENT_S]
    return [[round(max(0.0, a - MARGIN_S), 2), round(b + FRAME / RATE + MARGIN_S, 2)] for a, b in whole]


class Speech:
    """When somebody speaks."""

    inputs = (TensorSpec("file", "BYTES"),)
    outputs = (TensorSpec("segments", "JSON"),)

    def load(self) -> None:
        """Nothing is loaded."""

    def predict(self, items):
        """The segments of each file; one that is no sound gets an error of its own."""
        return [self.heard(item) for item in items]

    def heard(self, file: bytes):
        """The segments of one file, or what is wrong with it."""
        try:
            return segments(voiced(samples_of(file)))
        except ValueError as problem:
            return problem
