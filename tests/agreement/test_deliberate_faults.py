"""The same schedules must catch every deliberate fault: a suite that passes on broken members proves nothing."""

import pytest

from hydra_allreduce.agreement import MemberMachine
from hydra_allreduce.testing import InvariantBroken, check, random_run

from . import faulty

ENOUGH = 2000


def hunt(machine: type[MemberMachine]) -> None:
    for seed in range(ENOUGH):
        check(random_run(seed, machine))


@pytest.mark.parametrize("machine", faulty.FAULTS, ids=lambda m: m.__name__)
def test_the_schedules_catch(machine: type[MemberMachine]):
    with pytest.raises(InvariantBroken, match=r"check\(Model\("):  # the message has code that reproduces it
        hunt(machine)


def test_each_fault_says_what_it_breaks():
    assert len(faulty.FAULTS) >= 8
    assert all(machine.__doc__ for machine in faulty.FAULTS)
