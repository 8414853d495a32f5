"""Which images a peer works on: all peers' shares make up the batch, all batches make up the epochs."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from swarm.batches import Batches

from hydra_allreduce import Plan
from hydra_net import PeerId

PEERS = [PeerId(hashlib.sha256(bytes([i])).digest()) for i in range(6)]


@st.composite
def plans(draw):
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    return Plan.of((1, 1), sum(sizes), dict(zip(PEERS, sizes, strict=False)))


@given(plans(), st.integers(1, 60), st.integers(1, 500), st.integers(0, 9))
def test_the_jobs_of_all_peers_are_the_batch(plan, images, round, seed):
    batches = Batches(images, seed=seed)
    jobs = [batches.job(round, plan, peer) for peer in plan.sizes]
    assert [len(job) for job in jobs] == list(plan.sizes.values())
    assert np.array_equal(np.concatenate(jobs), batches.batch(round, plan.batch))


@given(st.integers(1, 50), st.integers(1, 120), st.integers(0, 9))
def test_every_epoch_visits_every_image_once(images, size, seed):
    batches = Batches(images, seed=seed)
    rounds = -(-3 * images // size)
    sequence = np.concatenate([batches.batch(number, size) for number in range(1, rounds + 1)])
    for epoch in range(3):
        assert sorted(sequence[epoch * images : (epoch + 1) * images]) == list(range(images))


@given(st.integers(2, 50), st.integers(1, 120), st.permutations(range(1, 8)))
def test_a_batch_depends_on_no_other(images, size, order):
    used = Batches(images, seed=4)
    for number in order:
        used.batch(number, size)
    assert np.array_equal(used.batch(3, size), Batches(images, seed=4).batch(3, size))


def test_another_seed_is_another_order():
    assert not np.array_equal(Batches(500, seed=1).batch(1, 500), Batches(500, seed=2).batch(1, 500))
    assert not np.array_equal(Batches(500, seed=1).batch(1, 500), Batches(500, seed=1).batch(2, 500))


def test_a_peer_that_is_not_in_the_plan_has_no_job():
    plan = Plan.of((1, 1), 5, {PEERS[0]: 5})
    assert len(Batches(50, seed=1).job(1, plan, PEERS[1])) == 0
