"""What a round returns, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import numpy as np
import pytest

from hydra_allreduce import Group, GroupClosed, Mismatch, Reduction
from hydra_net import LocalProtocolError
from hydra_net.testing import simulate
from tests.group.harness import Net, Peer, over_tcp, together


def ramp(number: int, size: int = 5) -> np.ndarray:
    return np.arange(size, dtype=np.float64) * (number + 1)


@pytest.mark.anyio
@pytest.mark.real
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_everybody_gets_the_weighted_mean_to_the_bit(count: int) -> None:
    async def body(peer: Peer) -> list[Reduction[Mapping[str, np.ndarray]]]:
        arrays = {"w": ramp(peer.number).astype(np.float32), "b": np.array(float(peer.number))}
        return [await peer.group.all_reduce(arrays, weight=peer.number + 1) for _ in range(3)]

    results = await over_tcp(count, body)
    weights = np.arange(1, count + 1)
    for round in range(3):
        first = results[0][round]
        np.testing.assert_allclose(first.arrays["b"], np.average(np.arange(count), weights=weights))
        np.testing.assert_allclose(
            first.arrays["w"], np.average([ramp(n) for n in range(count)], axis=0, weights=weights), rtol=1e-6
        )
        assert first.total_weight == weights.sum()
        assert sorted(first.contributors.values()) == list(weights)
        for mine in (result[round] for result in results):
            assert mine.round == round + 1
            assert mine.contributed
            assert mine.record == first.record
            assert {name: array.tobytes() for name, array in mine.arrays.items()} == {
                name: array.tobytes() for name, array in first.arrays.items()
            }
            assert not mine.arrays["w"].flags.writeable
            assert mine.attempts == 1
            assert not mine.lost
            assert mine.timings.total >= mine.timings.reduce >= 0


def test_a_sum_adds_the_arrays_as_they_are() -> None:
    async def body(peer: Peer) -> np.ndarray:
        return (await peer.group.all_reduce(ramp(peer.number), op="sum", weight=9)).arrays

    for total in simulate(together, 0, 3, body):
        np.testing.assert_array_equal(total, ramp(0) * 6)


def test_out_gets_the_result_and_inputs_are_left_alone() -> None:
    async def body(peer: Peer) -> None:
        mine, out = [ramp(peer.number)], [np.full(5, np.nan)]
        result = await peer.group.all_reduce(mine, out=out)
        assert result.arrays is out
        np.testing.assert_allclose(out[0], ramp(0) * 1.5)
        np.testing.assert_array_equal(mine[0], ramp(peer.number))

    simulate(together, 0, 2, body)


def test_returned_arrays_stay_as_they_are_in_later_rounds() -> None:
    async def body(peer: Peer) -> None:
        kept = [(await peer.group.all_reduce(np.full(3, float(r)))).arrays for r in range(6)]
        for number, array in enumerate(kept):
            np.testing.assert_array_equal(array, np.full(3, float(number)))

    simulate(together, 0, 3, body)


def test_metrics_are_averaged_by_weight_over_those_that_sent_them() -> None:
    async def body(peer: Peer) -> Mapping[str, float]:
        metrics = {"loss": float(peer.number)} | ({"rare": 7.0} if peer.number == 1 else {})
        return (await peer.group.all_reduce(ramp(0), weight=peer.number + 1, metrics=metrics)).metrics

    for metrics in simulate(together, 0, 3, body):
        assert metrics == pytest.approx({"loss": (0 * 1 + 1 * 2 + 2 * 3) / 6, "rare": 7.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"weight": True}, "weight"),
        ({"op": "median"}, "op must be"),
        ({"metrics": {"": 1.0}}, "metric"),
        ({"metrics": {str(i): 1.0 for i in range(33)}}, "metrics"),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_enters_no_round(options: dict[str, object], message: str) -> None:
    async def body(peer: Peer) -> None:
        with pytest.raises(ValueError, match=message):
            await peer.group.all_reduce(ramp(0), **options)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="dtype"):
            await peer.group.all_reduce(np.arange(3))
        assert (await peer.group.all_reduce(ramp(0))).round == 1

    simulate(together, 0, 2, body)


@pytest.mark.parametrize(
    ("odd", "field"),
    [
        ({"arrays": {"w": np.zeros(4)}}, "shape of 'w'"),
        ({"arrays": {"w": np.zeros(3, np.float32)}}, "dtype of 'w'"),
        ({"arrays": {"v": np.zeros(3)}}, "names"),
        ({"arrays": np.zeros(3)}, "kind"),
        ({"arrays": {"w": np.zeros(3)}, "op": "sum"}, "op"),
    ],
)
def test_calls_that_do_not_fit_are_an_error_for_everybody_and_the_group_lives_on(odd: dict, field: str) -> None:
    async def body(peer: Peer) -> None:
        call = odd if peer.number == 1 else {"arrays": {"w": np.zeros(3)}}
        with pytest.raises(Mismatch) as caught:
            await peer.group.all_reduce(**call)
        assert caught.value.field == field
        result = await peer.group.all_reduce({"w": np.ones(3)})
        assert result.round == 1
        assert len(result.contributors) == 3
        assert odd_one in (caught.value.peer, caught.value.other)
        assert str(odd_one) in str(caught.value)

    odd_one = Net().node(1).id
    simulate(together, 0, 3, body)


def test_a_second_call_at_the_same_time_is_refused() -> None:
    async def body(peer: Peer) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.group.all_reduce, ramp(0))
            await anyio.lowlevel.checkpoint()
            with pytest.raises(LocalProtocolError, match="under way"):
                await peer.group.all_reduce(ramp(0))

    simulate(together, 0, 1, body)


def test_a_cancelled_caller_gets_its_round_at_the_next_call() -> None:
    async def body(peer: Peer) -> list[tuple[int, bool, float]]:
        got = []
        mine = ramp(peer.number)
        if peer.number == 1:
            with anyio.move_on_after(0.001) as scope:
                await peer.group.all_reduce(mine)
            assert scope.cancelled_caught
            mine[:] = -999  # the caller's again
            await anyio.sleep(5)
        while len(got) < 3:
            result = await peer.group.all_reduce(ramp(peer.number))
            got.append((result.round, result.contributed, float(result.arrays[1])))
        return got

    expected = [(r, True, 2.0) for r in (1, 2, 3)]
    assert simulate(together, 0, 3, body) == [expected] * 3


def test_a_call_cancelled_before_its_round_can_start_still_counts_once() -> None:
    async def body(peer: Peer) -> list[float]:
        if peer.number == 0:
            await anyio.sleep(10)
        elif peer.number == 1:
            with anyio.move_on_after(1):
                await peer.group.all_reduce(np.full(2, 100.0), op="sum")
        return [float((await peer.group.all_reduce(np.full(2, 1.0), op="sum")).arrays[0]) for _ in range(2)]

    assert simulate(together, 0, 3, body) == [[102.0, 3.0]] * 3


def test_barrier_is_a_round_that_everybody_waits_for() -> None:
    async def body(peer: Peer) -> tuple[float, int]:
        await anyio.sleep(peer.number)
        view = await peer.group.barrier()
        return anyio.current_time(), view.world_size

    times = simulate(together, 0, 3, body)
    assert min(time for time, _ in times) >= 2
    assert {size for _, size in times} == {3}


def test_compute_runs_beside_the_loop_and_returns_the_value() -> None:
    async def body(peer: Peer) -> int:
        return await peer.group.compute(lambda a, b: a + b, 3, 4)

    assert simulate(together, 0, 2, body) == [7, 7]


def test_a_group_of_one_is_a_group() -> None:
    async def body(peer: Peer) -> None:
        result = await peer.group.all_reduce(ramp(3), weight=5)
        np.testing.assert_array_equal(result.arrays, ramp(3))
        assert result.total_weight == 5

    simulate(together, 0, 1, body)


def test_without_async_with_there_is_no_group() -> None:
    async def main() -> None:
        async with Net().node(0) as node:
            group = Group(node, "test")
            with pytest.raises(GroupClosed, match="async with"):
                await group.all_reduce(ramp(0))
            async with group:
                await group.all_reduce(ramp(0))
            with pytest.raises(GroupClosed):
                await group.all_reduce(ramp(0))
            with pytest.raises(GroupClosed):
                _ = group.view
            with pytest.raises(LocalProtocolError, match="once"):
                async with group:
                    pass

    simulate(main)


@pytest.mark.anyio
@pytest.mark.real
async def test_an_exception_of_the_body_comes_out_bare() -> None:
    async def body(peer: Peer) -> None:
        async def broken(error: BaseException) -> None:
            async with Group(peer.node, "inner") as inner:
                await inner.all_reduce(ramp(0))
                raise error

        with pytest.raises(ValueError, match=r"^mine$"):
            await broken(ValueError("mine"))
        with pytest.raises(KeyboardInterrupt):
            await broken(KeyboardInterrupt())

    await over_tcp(1, body)
