"""The reader of CIFAR-10's binary files, and the images that stand in for them."""

import numpy as np
import pytest

from bench.paper.images import cifar


@pytest.fixture
def folder(tmp_path):
    """Two training files and a test file; pixel values tell channel and position."""
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 3), ("data_batch_2.bin", 2), ("test_batch.bin", 4)):
        records = rng.integers(256, size=(count, cifar.RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(count)
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


def test_records_become_images(folder):
    raw = np.frombuffer((folder / "data_batch_2.bin").read_bytes(), np.uint8)
    images = cifar.read(folder, cifar.TRAIN_FILES, 5)
    assert images.labels.tolist() == [0, 1, 2, 0, 1]
    assert images.pixels.shape == (5, 32, 32, 3)
    # Pixel (y, x) of channel c stands at 1 + 1024 c + 32 y + x of its record.
    for c, y, x in ((0, 0, 0), (1, 0, 31), (2, 31, 5)):
        assert images.pixels[4, y, x, c] == raw[cifar.RECORD + 1 + 1024 * c + 32 * y + x]
    batch = images.batch(np.array([4, 0]))
    assert batch.images.dtype == np.float32 and batch.labels.tolist() == [1, 0]
    np.testing.assert_allclose(batch.images[0], images.pixels[4] / 127.5 - 1, atol=1e-6)


def test_training_and_test_images_come_from_their_files(folder):
    train, test = cifar.load(folder, np.random.default_rng(0), 4, 3)
    assert train.labels.tolist() == [0, 1, 2, 0] and test.labels.tolist() == [0, 1, 2]


def test_a_folder_without_files_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_\*\.bin"):
        cifar.load(tmp_path, np.random.default_rng(0), 1, 1)


def test_too_few_images(folder):
    with pytest.raises(ValueError, match=r"has 5 images in data_batch_.*, 6 are wanted"):
        cifar.read(folder, cifar.TRAIN_FILES, 6)


@pytest.mark.parametrize("size", [0, 100, cifar.RECORD + 1])
def test_a_file_of_another_size(folder, size):
    (folder / "data_batch_2.bin").write_bytes(bytes(size))
    with pytest.raises(ValueError, match=f"data_batch_2.bin has {size} bytes; a multiple of 3073"):
        cifar.read(folder, cifar.TRAIN_FILES, 1)


def test_a_label_that_is_none(folder):
    record = np.full(cifar.RECORD, 10, np.uint8)
    (folder / "data_batch_1.bin").write_bytes(record.tobytes())
    with pytest.raises(ValueError, match=r"data_batch_1\.bin has label 10"):
        cifar.read(folder, cifar.TRAIN_FILES, 1)


def test_generated_images_can_be_told_apart():
    train, test = cifar.load(None, np.random.default_rng(0), 300, 60)
    assert train.pixels.shape == (300, 32, 32, 3) and len(test.labels) == 60
    means = np.stack([train.pixels[train.labels == k].mean(0) for k in range(cifar.CLASSES)])
    distances = np.square(test.pixels[:, None] - means).sum((2, 3, 4))
    assert (distances.argmin(1) == test.labels).mean() > 0.9
    again, _ = cifar.load(None, np.random.default_rng(0), 300, 60)
    np.testing.assert_array_equal(train.pixels, again.pixels)


def test_jittered_images_are_shifted_and_mirrored():
    pixels = np.arange(1, 4 * 4 * 3 + 1, dtype=np.uint8).reshape(1, 4, 4, 3).repeat(300, 0)
    images = cifar.Images(pixels, np.arange(300))
    moved = images.jittered(np.random.default_rng(0), most=1)
    padded = np.pad(pixels[0], ((1, 1), (1, 1), (0, 0)))
    views = [padded[y : y + 4, x : x + 4] for y in range(3) for x in range(3)]
    allowed = {v.tobytes() for view in views for v in (view, view[:, ::-1])}
    assert {image.tobytes() for image in moved.pixels} == allowed
    assert moved.labels is images.labels and (pixels[0] == pixels[1]).all()
    assert moved.take(np.array([7, 2])).labels.tolist() == [7, 2]


def test_shrunk_images_are_means_of_squares():
    pixels = np.arange(32 * 32 * 3).reshape(1, 32, 32, 3).astype(np.uint8)
    small = cifar.Images(pixels, np.zeros(1, np.int32)).shrunk(16)
    assert small.pixels.shape == (1, 16, 16, 3)
    assert small.pixels[0, 0, 1, 2] == int(pixels[0, :2, 2:4, 2].mean())
    with pytest.raises(ValueError, match="size: got 5; a divisor of 16"):
        small.shrunk(5)
