"""What is learned: images by a small ResNet, spoken digits by a plain deep net."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from bench.paper.images import cifar
from bench.paper.pipeline import networks
from bench.paper.recurrent import audio, bitstream
from bench.shared.bench import Options

NETWORKS = {"images": "resnet", "digits": "plain"}
_PER_CLASS = 270
"""Recordings of a digit for training: all but those of the test split."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs (samples, *features), float32, and labels (samples,)."""

    inputs: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set and the network that learns it.

    Attributes:
        name: "images" or "digits".
        train, test: the data.
        classes: how many.
        width: of the network.
        jitter: pixels by which images are shifted in training at most, and then mirrored at random.
    """

    name: str
    train: Data
    test: Data
    classes: int
    width: int
    jitter: int = 0

    def batches(self, size: int, length: int, seed: int) -> "Batches":
        """Of the training data, over and over again."""
        return Batches(self.train, size, length, seed, self.jitter)

    def network(self, blocks: int) -> networks.Network:
        features = self.train.inputs.shape[1:]
        return networks.cut(NETWORKS[self.name], blocks, features, self.classes, self.width)

    def accuracy(self, network: networks.Network, params, states) -> float:
        """On the test data."""
        scores = _score(network)(params, states, jnp.asarray(self.test.inputs))
        return float(np.mean(np.argmax(np.asarray(scores), -1) == self.test.labels))


@dataclasses.dataclass(frozen=True)
class Batches:
    """Shuffled batches, made when they are asked for.

    Attributes:
        data: the data.
        size: rows of a batch.
        length: batches in all.
        seed: of the order, and of what is shifted and mirrored.
        jitter: see `Task`; 0 leaves inputs as they are.
    """

    data: Data
    size: int
    length: int
    seed: int
    jitter: int = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[jax.Array, jax.Array]:
        if not 0 <= number < self.length:
            raise IndexError(number)
        rows = self._order()[number]
        inputs, labels = self.data.inputs[rows], self.data.labels[rows]
        if self.jitter:
            rng = np.random.default_rng((self.seed, number))
            inputs = cifar.Images(inputs, labels).jittered(rng, self.jitter).pixels
        return jnp.asarray(inputs), jnp.asarray(labels)

    def _order(self) -> list[np.ndarray]:
        return _order(len(self.data.labels), self.size, self.length, self.seed)


@functools.lru_cache(maxsize=16)
def _order(rows: int, size: int, count: int, seed: int) -> list[np.ndarray]:
    batches = bitstream.shuffled(np.random.default_rng(seed), rows, size)
    return [next(batches) for _ in range(count)]


@functools.cache
def _score(network: networks.Network):
    return jax.jit(network.score)


def task_of(name: str, options: Options) -> Task:
    """The task, its data those of `--data` or `--digits`, or generated."""
    if name == "images":
        sizes = (options.train_images, options.test_images)
        return _images(options.data, *sizes, options.size, options.width)
    return _digits(options.digits, options.width)


@functools.cache
def _images(folder: pathlib.Path | None, train: int, test: int, size: int, width: int) -> Task:
    parts = cifar.load(folder, np.random.default_rng(0), train, test)
    made = [part.shrunk(size) for part in parts]
    first, second = (Data(p.pixels.astype(np.float32) / 127.5 - 1, p.labels) for p in made)
    return Task("images", first, second, cifar.CLASSES, width)


@functools.cache
def _digits(folder: pathlib.Path | None, width: int) -> Task:
    if folder is None:
        clips = audio.generate(np.random.default_rng(0))
    else:
        clips = audio.read(folder, _PER_CLASS)
    parts = clips.features(audio.SETS["S"])
    first, second = (Data(part.frames, part.labels) for part in parts)
    return Task("digits", first, second, len(clips.classes), 8 * width)
