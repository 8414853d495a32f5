"""A small network in plain numpy: one hidden layer, cross-entropy, SGD with momentum; float32 throughout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

CLASSES = 10


class Network:
    """``inputs`` pixels, ``hidden`` rectified units, ten classes.

    Equal seeds give equal parameters on every machine (only exact operations are used to draw them), and equal
    gradients leave equal parameters equal to the bit (``step`` is elementwise). So peers that start from one seed and
    take the same steps never need to exchange parameters.
    """

    def __init__(
        self, inputs: int, *, hidden: int = 64, seed: int = 0, rate: float = 0.1, momentum: float = 0.9
    ) -> None:
        rng = np.random.default_rng(seed)
        self.rate, self.momentum = np.float32(rate), np.float32(momentum)
        self.parameters: dict[str, np.ndarray] = {
            "w1": _uniform(rng, inputs, hidden),
            "b1": np.zeros(hidden, np.float32),
            "w2": _uniform(rng, hidden, CLASSES),
            "b2": np.zeros(CLASSES, np.float32),
        }
        self._velocity = {name: np.zeros_like(array) for name, array in self.parameters.items()}

    def gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
        """The mean gradient and the mean loss over images ``x`` (n, inputs) with labels ``y`` (n,); n >= 1."""
        hidden, logits = self._forward(x)
        error = _softmax(logits)
        loss = float(-np.log(np.maximum(error[np.arange(len(y)), y], 1e-12)).mean())
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = error @ self.parameters["w2"].T
        back[hidden <= 0] = 0
        gradient = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        return gradient, loss

    def step(self, gradient: Mapping[str, np.ndarray]) -> None:
        """One step of gradient descent with momentum."""
        for name in self.parameters:
            self._velocity[name] *= self.momentum
            self._velocity[name] += gradient[name]
            self.parameters[name] -= self.rate * self._velocity[name]

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The share of images whose most likely class is the right one."""
        return float((self._forward(x)[1].argmax(1) == y).mean())

    @property
    def nbytes(self) -> int:
        """The bytes of all parameters together, and of a gradient."""
        return sum(array.nbytes for array in self.parameters.values())

    def digest(self) -> str:
        """SHA-256 of the parameters: the same on two peers if and only if they agree to the bit."""
        hash = hashlib.sha256()
        for name, array in sorted(self.parameters.items()):
            hash.update(f"{name}{array.shape}".encode())
            hash.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        return hash.hexdigest()

    def _forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = self.parameters
        hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
        return hidden, hidden @ p["w2"] + p["b2"]


def _uniform(rng: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    """He's initialisation, uniform: a normal draw would go through the machine's own logarithm."""
    bound = np.sqrt(6 / inputs)
    return ((rng.random((inputs, outputs)) * 2 - 1) * bound).astype(np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)
