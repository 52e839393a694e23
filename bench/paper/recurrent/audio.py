"""Labelled audio as sequences of MFCC frames: IRMAS, spoken digits, or a generated set.

The settings S, M and L trade frequency for time resolution. They are those of the paper for
IRMAS, 3 s of stereo at 44.1 kHz, and give 259 x 38, 517 x 24 and 1034 x 12 features; at other
rates windows and hops keep their duration. The first coefficient, the power, is left out, and
each coefficient is normalised over the frames of a clip to mean 0 and variance 1.

Source: Wang, Bai, Pekhimenko, BPPSA (MLSys 2020), section 4.2 and Table 3.
"""

import dataclasses
import pathlib
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bench.paper.recurrent import bitstream

try:
    import librosa
    import soundfile
except ImportError as error:
    raise ImportError(
        "the audio benches need librosa and soundfile: pip install 'parscan_bp[audio]'"
    ) from error

PAPER_RATE = 44100
_DIGIT = re.compile(r"(?P<digit>\d)_(?P<speaker>[^_]+)_(?P<index>\d+)\.wav")
# The official test split: the first recordings of every digit and speaker.
_DIGIT_TESTS = 5
_IRMAS_TEST_SHARE = 5


@dataclasses.dataclass(frozen=True)
class Mfcc:
    """A row of Table 3: coefficients, and samples at 44.1 kHz of a window and of a hop."""

    coefficients: int
    window: int
    hop: int

    def frames(self, wave: np.ndarray, rate: int) -> np.ndarray:
        """(frames, channels * (coefficients - 1)), float32, of a wave (channels, samples)."""
        scale = rate / PAPER_RATE
        found = librosa.feature.mfcc(
            y=wave,
            sr=rate,
            n_mfcc=self.coefficients,
            n_fft=round(self.window * scale),
            hop_length=round(self.hop * scale),
            # 128 bands would be narrower than the lines of a short window.
            n_mels=128 if rate > PAPER_RATE / 2 else 40,
        )
        kept = found[:, 1:].reshape(-1, found.shape[-1])
        spread = kept.std(1, keepdims=True)
        # A silent clip has no variance to divide by.
        normal = (kept - kept.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1)
        return normal.T.astype(np.float32)


SETS = {"S": Mfcc(20, 4096, 512), "M": Mfcc(13, 2048, 256), "L": Mfcc(7, 1024, 128)}


class Clip(NamedTuple):
    """A wave (channels, samples), and whether it belongs to the test split."""

    wave: np.ndarray
    label: int
    test: bool


@dataclasses.dataclass(frozen=True)
class Clips:
    """Clips of one rate and length."""

    source: str
    rate: int
    classes: tuple[str, ...]
    clips: tuple[Clip, ...]

    def features(self, settings: Mfcc) -> tuple["Features", "Features"]:
        """The training and the test split as MFCC frames."""
        made = [(settings.frames(c.wave, self.rate), c.label, c.test) for c in self.clips]
        splits = ([m for m in made if m[2] == test] for test in (False, True))
        train, test = (Features(np.stack([m[0] for m in s]), _labels(s)) for s in splits)
        return train, test


class Features(NamedTuple):
    """Frames (clips, T, C), float32, and labels (clips,), int32."""

    frames: np.ndarray
    labels: np.ndarray

    def batch(self, rows: np.ndarray) -> bitstream.Batch:
        """The given rows, time first."""
        inputs = np.swapaxes(self.frames[rows], 0, 1)
        return bitstream.Batch(jnp.asarray(inputs), jnp.asarray(self.labels[rows]))


def _labels(made: list) -> np.ndarray:
    return np.array([m[1] for m in made], np.int32)


def read(folder: pathlib.Path, per_class: int | None = None) -> Clips:
    """The clips of a folder in one of the two layouts.

    Args:
        folder: with files ``{digit}_{speaker}_{index}.wav``, or with a folder of wav files for
            each class, as ``IRMAS-TrainingData/<instrument>/*.wav``.
        per_class: how many clips of a class to take at most.

    Raises:
        ValueError: the folder has neither layout, or its files differ in rate or channels.
    """
    digits = sorted(p for p in folder.glob("*.wav") if _DIGIT.fullmatch(p.name))
    if digits:
        return _digits(digits, per_class)
    instruments = sorted(p for p in folder.glob("*/") if any(p.glob("*.wav")))
    if instruments:
        return _irmas(instruments, per_class)
    raise ValueError(
        f"--data {folder.name}: wanted are files {{digit}}_{{speaker}}_{{index}}.wav, or a folder "
        "of wav files for each class; there are none"
    )


def _digits(paths: list[pathlib.Path], per_class: int | None) -> Clips:
    """Spoken digits, one second each: longer ones are cut, shorter ones begin with silence."""
    found, rates, taken = [], set(), [0] * 10
    # Every index of all speakers before the next one, so that a limit keeps all speakers.
    for path in sorted(paths, key=lambda p: int(_DIGIT.fullmatch(p.name)["index"])):
        name = _DIGIT.fullmatch(path.name)
        digit, test = int(name["digit"]), int(name["index"]) < _DIGIT_TESTS
        if not test and per_class is not None and taken[digit] >= per_class:
            continue
        taken[digit] += not test
        wave, rate = _wave(path)
        rates.add(rate)
        found.append(Clip(_ending(wave, rate), digit, test))
    return Clips("spoken digits", _only(rates), tuple(map(str, range(10))), tuple(found))


def _irmas(folders: list[pathlib.Path], per_class: int | None) -> Clips:
    """Instruments. IRMAS has no test split of its clips of one instrument: every fifth is one."""
    found, rates = [], set()
    for label, folder in enumerate(folders):
        for k, path in enumerate(sorted(folder.glob("*.wav"))[:per_class]):
            wave, rate = _wave(path)
            rates.add(rate)
            found.append(Clip(wave, label, k % _IRMAS_TEST_SHARE == 0))
    if len({clip.wave.shape for clip in found}) > 1:
        raise ValueError("--data: the clips differ in length or number of channels")
    return Clips("IRMAS", _only(rates), tuple(f.name for f in folders), tuple(found))


def generate(rng: np.random.Generator, per_class: int = 40) -> Clips:
    """Half a second each of tones of three timbres, of any pitch, in noise: 8 kHz, one channel."""
    rate, timbres = 8000, {"flute": 3.0, "clarinet": 1.0, "saw": 0.3}
    time, orders = np.arange(rate // 2) / rate, np.arange(1, 9)
    clips = []
    for label, decay in enumerate(timbres.values()):
        for k in range(per_class):
            phases = 2 * np.pi * rng.uniform(110, 440) * orders[:, None] * time
            tone = (np.exp(-decay * orders)[:, None] * np.sin(phases)).sum(0)
            noise = 0.1 * tone.std() * rng.standard_normal(len(time))
            wave = (tone + noise).astype(np.float32)[None]
            clips.append(Clip(wave, label, k % _IRMAS_TEST_SHARE == 0))
    return Clips("generated tones", rate, tuple(timbres), tuple(clips))


def _wave(path: pathlib.Path) -> tuple[np.ndarray, int]:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return samples.T, rate


def _ending(wave: np.ndarray, samples: int) -> np.ndarray:
    """The last samples, after silence where there are fewer."""
    kept = wave[:, -samples:]
    return np.pad(kept, ((0, 0), (samples - kept.shape[1], 0)))


def _only(rates: set[int]) -> int:
    if len(rates) != 1:
        raise ValueError(f"--data: the files have sample rates {sorted(rates)}; one is wanted")
    return rates.pop()
