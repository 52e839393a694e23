"""CIFAR-10 from its official binary files, or generated images of the same form.

A record is one byte, the label 0..9, and 3072 bytes: 32x32 pixels of the red channel row by row,
then green, then blue.

Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009); the layout is
that of cifar-10-binary.tar.gz.
"""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CLASSES = 10
SIZE = 32
CHANNELS = 3
RECORD = 1 + SIZE * SIZE * CHANNELS
TRAIN_FILES, TEST_FILES = "data_batch_*.bin", "test_batch*.bin"


class Batch(NamedTuple):
    """Images (B, size, size, 3), float32 in [-1, 1], and labels (B,), int32."""

    images: jax.Array
    labels: jax.Array


class Images(NamedTuple):
    """Pixels (samples, size, size, 3), uint8, and labels (samples,), int32."""

    pixels: np.ndarray
    labels: np.ndarray

    def batch(self, rows: np.ndarray | slice) -> Batch:
        """The given rows, as a network takes them."""
        images = self.pixels[rows].astype(np.float32) / 127.5 - 1
        return Batch(jnp.asarray(images), jnp.asarray(self.labels[rows]))

    def take(self, rows: np.ndarray) -> "Images":
        """The given rows."""
        return Images(self.pixels[rows], self.labels[rows])

    def jittered(self, rng: np.random.Generator, most: int = 4) -> "Images":
        """Each image shifted by up to `most` pixels either way, zero where none was, and every
        other mirrored, at random."""
        samples, size = self.pixels.shape[:2]
        padded = np.pad(self.pixels, ((0, 0), (most, most), (most, most), (0, 0)))
        moved = np.empty_like(self.pixels)
        shifts = rng.integers(2 * most + 1, size=(samples, 2))
        for image, whole, (y, x) in zip(moved, padded, shifts, strict=True):
            image[:] = whole[y : y + size, x : x + size]
        mirrored = rng.random(samples) < 0.5
        moved[mirrored] = moved[mirrored, :, ::-1]
        return Images(moved, self.labels)

    def shrunk(self, size: int) -> "Images":
        """Images of `size` x `size` pixels, each the mean of a square.

        Raises:
            ValueError: the images cannot be divided into that many squares.
        """
        samples, old = self.pixels.shape[:2]
        if size < 1 or old % size:
            raise ValueError(f"size: got {size}; a divisor of {old} is wanted")
        squares = self.pixels.reshape(samples, size, old // size, size, old // size, CHANNELS)
        return Images(squares.mean((2, 4)).astype(np.uint8), self.labels)


def load(
    folder: pathlib.Path | None, rng: np.random.Generator, train: int, test: int
) -> tuple[Images, Images]:
    """Training and test images: the first of `folder`'s, or generated ones without a folder.

    Args:
        folder: where the official files are.
        rng: for generated images.
        train: number of training images.
        test: number of test images.

    Raises:
        FileNotFoundError: the folder does not have the files.
        ValueError: a file has another layout, or there are too few images.
    """
    if folder is None:
        images = generated(rng, train + test)
        return Images(*(part[:train] for part in images)), Images(
            *(part[train:] for part in images)
        )
    return read(folder, TRAIN_FILES, train), read(folder, TEST_FILES, test)


def read(folder: pathlib.Path, pattern: str, count: int) -> Images:
    """The first `count` images of the files whose names match, in the order of their names.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a file has another layout, or there are too few images.
    """
    files = sorted(folder.glob(pattern))
    if not files:
        raise FileNotFoundError(
            f"{folder} has no {pattern}; the files of cifar-10-binary.tar.gz are wanted"
        )
    records = np.concatenate([_records(file) for file in files])
    if len(records) < count:
        raise ValueError(f"{folder} has {len(records)} images in {pattern}, {count} are wanted")
    labels, pixels = records[:count, 0], records[:count, 1:]
    planes = pixels.reshape(count, CHANNELS, SIZE, SIZE)
    return Images(planes.transpose(0, 2, 3, 1), labels.astype(np.int32))


def generated(rng: np.random.Generator, count: int) -> Images:
    """Images that can be told apart: a smooth pattern of its class each, shifted, under noise."""
    coarse = rng.normal(size=(CLASSES, 4, 4, CHANNELS))
    patterns = coarse.repeat(SIZE // 4, axis=1).repeat(SIZE // 4, axis=2)
    labels = rng.integers(CLASSES, size=count).astype(np.int32)
    pixels = np.empty((count, SIZE, SIZE, CHANNELS), np.uint8)
    # One by one: the noise of all images at once would take eight bytes a pixel.
    for image, label in zip(pixels, labels, strict=True):
        shifted = np.roll(patterns[label], rng.integers(-2, 3, size=2), axis=(0, 1))
        noisy = 127.5 + 40 * shifted + 30 * rng.standard_normal(shifted.shape, np.float32)
        image[:] = np.clip(noisy, 0, 255)
    return Images(pixels, labels)


def _records(file: pathlib.Path) -> np.ndarray:
    data = np.fromfile(file, np.uint8)
    if not data.size or data.size % RECORD:
        raise ValueError(
            f"{file.name} has {data.size} bytes; a multiple of {RECORD} (a label and "
            f"{SIZE}x{SIZE}x{CHANNELS} pixels) is wanted"
        )
    records = data.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise ValueError(f"{file.name} has label {records[:, 0].max()}; 0..{CLASSES - 1} are known")
    return records
