"""The network: its gradient is that of its loss, and equal steps leave equal parameters."""

from __future__ import annotations

import numpy as np
from swarm import data
from swarm.batches import Batches
from swarm.model import Network


def small(seed=3):
    """A network in double precision, where a difference quotient says something."""
    network = Network(6, hidden=5, seed=seed)
    network.parameters = {name: array.astype(np.float64) for name, array in network.parameters.items()}
    return network


def images(count, inputs=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((count, inputs)), rng.integers(0, 10, count)


def test_the_gradient_is_the_derivative_of_the_loss():
    network, (x, y) = small(), images(8)
    gradient, _ = network.gradient(x, y)
    for name, array in network.parameters.items():
        for index in np.ndindex(array.shape):
            here, step = array[index], 1e-6
            array[index] = here + step
            above = network.gradient(x, y)[1]
            array[index] = here - step
            below = network.gradient(x, y)[1]
            array[index] = here
            assert abs(gradient[name][index] - (above - below) / (2 * step)) < 1e-7, (name, index)


def test_the_weighted_mean_of_two_jobs_is_the_gradient_of_both():
    network, (x, y) = small(), images(10)
    one, other, both = network.gradient(x[:3], y[:3])[0], network.gradient(x[3:], y[3:])[0], network.gradient(x, y)[0]
    for name in both:
        assert np.abs((3 * one[name] + 7 * other[name]) / 10 - both[name]).max() < 1e-12


def test_parameters_depend_on_the_seed_alone():
    # This very digest on every machine: peers on different ones never exchange their first parameters.
    assert Network(784, seed=1).digest() == "18854f9a5cb312c1b5292acea58bde12fa6a37f3557bd595f6d67ea9d196c491"
    assert Network(784, seed=1).digest() != Network(784, seed=2).digest()


def test_equal_steps_leave_equal_parameters_and_one_bit_makes_a_difference():
    one, other = Network(6, seed=1), Network(6, seed=1)
    gradient = {name: array.copy() for name, array in Network(6, seed=2).parameters.items()}
    for network in (one, other):
        network.step(gradient)
        network.step(gradient)
    assert one.digest() == other.digest() != Network(6, seed=1).digest()
    other.parameters["b2"][0] = np.nextafter(other.parameters["b2"][0], np.float32(9))
    assert one.digest() != other.digest()


def test_a_step_is_gradient_descent_with_momentum():
    network = Network(6, seed=1, rate=0.5, momentum=0.5)
    before = network.parameters["b1"].copy()
    gradient = {name: np.ones_like(array) for name, array in network.parameters.items()}
    network.step(gradient)
    network.step(gradient)
    assert np.allclose(network.parameters["b1"], before - 0.5 * 1 - 0.5 * 1.5)


def test_gradients_are_float32_and_counted():
    network = Network(784, seed=1)
    gradient, loss = network.gradient(*images(4, 784))
    assert {array.dtype for array in gradient.values()} <= {np.dtype(np.float32), np.dtype(np.float64)}
    gradient, loss = network.gradient(images(4, 784)[0].astype(np.float32), images(4, 784)[1])
    assert {array.dtype for array in gradient.values()} == {np.dtype(np.float32)}
    assert isinstance(loss, float)
    assert network.nbytes == sum(array.nbytes for array in gradient.values()) == 4 * (784 * 64 + 64 + 64 * 10 + 10)


def test_it_learns_mnist():
    mnist = data.load("mnist-5k")
    network, batches = Network(784, seed=1), Batches(len(mnist.train_x), seed=1)
    for number in range(1, 121):
        batch = batches.batch(number, 256)
        network.step(network.gradient(mnist.train_x[batch], mnist.train_y[batch])[0])
    assert network.accuracy(mnist.test_x, mnist.test_y) >= 0.90
