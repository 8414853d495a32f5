"""The pump over streams: right results, every break at every byte, hostile and slow neighbours, cancellation."""

import struct
from random import Random

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_allreduce.ring import pump as real
from hydra_allreduce.ring.errors import RingBroken, RingProtocolError
from hydra_net.errors import LocalProtocolError
from hydra_net.testing import simulate

from .harness import SMALL, Inputs, random_inputs
from .streams import Link, plain_pair

HEADER = b"head"


def expect_header(got):
    assert got == HEADER


async def one_rank(inputs, rank, streams, segments, *, module=real, **overrides):
    previous, next = streams
    return await module.run_ring(
        **{
            "rank": rank,
            "size": inputs.size,
            "previous": previous,
            "next": next,
            "header": HEADER,
            "check_header": expect_header,
            "segments": segments,
            "meta": inputs.meta(rank),
            "finish": inputs.finish,
            "sub_chunk": SMALL,
        }
        | overrides
    )


async def all_ranks(inputs, streams, *, rounds=1, **how):
    """Run rings on ``streams`` ((previous, next) per rank); returns per rank its segments or its error.

    A rank that fails closes its streams, as every caller must; so the others hear of it.
    """
    outcomes: list = [None] * inputs.size

    async def run(rank):
        for _ in range(rounds):
            segments = inputs.segments(rank)
            try:
                metas = await one_rank(inputs, rank, streams[rank], segments, **how)
            except (RingBroken, RingProtocolError) as error:
                outcomes[rank] = error
                for stream in streams[rank]:
                    await stream.aclose()
                return
            assert metas == tuple(inputs.meta(r) for r in range(inputs.size))
            outcomes[rank] = segments

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for rank in range(inputs.size):
                tasks.start_soon(run, rank)
    return outcomes


def ring_of(links):
    """(previous, next) per rank, from one link per rank that leads to its next one."""
    ends = [link.ends() for link in links]
    return [(ends[rank - 1][1], ends[rank][0]) for rank in range(len(links))]


def finished(outcomes):
    return [None if isinstance(outcome, Exception) else outcome for outcome in outcomes]


def check_pump(inputs, random, *, window=1 << 30, capacity=1 << 30, rounds=1, **how):
    """Run whole rings over small links and check the results; shared with the hunt for deliberate faults."""
    links = [Link(random, window=window, capacity=capacity) for _ in range(inputs.size)]
    outcomes = simulate(lambda: all_ranks(inputs, ring_of(links), rounds=rounds, **how))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    inputs.check(outcomes)
    assert not any(link.way for link in links)


LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["f4", "f8"])), max_size=3)


@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    size=st.integers(2, 8),
    lengths=LENGTHS,
    op=st.sampled_from(["mean", "sum"]),
    random=st.integers(0, 1 << 32).map(Random),
    window=st.integers(1, 99),
    capacity=st.integers(1, 99),
)
def test_every_rank_gets_the_same_weighted_mean(*, seed, size, lengths, op, random, window, capacity):
    check_pump(random_inputs(seed, size, lengths, op), random, window=window, capacity=capacity, rounds=2)


@pytest.mark.anyio
@pytest.mark.parametrize("size", range(2, 9))
async def test_rings_of_every_size_on_both_back_ends(size):
    inputs = random_inputs(size, size, [(1000, "f4"), (3, "f8"), (0, "f4")])
    links = [Link(Random(rank), window=500, capacity=700) for rank in range(size)]
    outcomes = await all_ranks(inputs, ring_of(links), rounds=2)
    inputs.check(outcomes)
    assert None not in finished(outcomes)


@pytest.mark.anyio
@pytest.mark.parametrize("size", range(2, 6))
async def test_streams_that_know_only_anyios_methods_will_do(size):
    inputs = random_inputs(size, size, [(2000, "f4"), (700, "f8")])
    pairs = [plain_pair() for _ in range(size)]
    streams = [(pairs[rank - 1][1], pairs[rank][0]) for rank in range(size)]
    outcomes = await all_ranks(inputs, streams, rounds=2, sub_chunk=1000)
    inputs.check(outcomes)
    assert None not in finished(outcomes)
    for pair in pairs:
        await pair[0].aclose()
        await pair[1].aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("op", ["mean", "sum"])
async def test_a_ring_of_one_is_its_own_mean(op):
    array = np.arange(3_000_000, dtype=np.float32)
    inputs = Inputs([array], [0.25], op)
    segments = inputs.segments(0)
    metas = await one_rank(inputs, 0, (None, None), segments, sub_chunk=1 << 16)
    assert metas == (inputs.meta(0),)
    np.testing.assert_array_equal(segments[0], array)


# ---------------------------------------------------------------- breaks


def cut_ring(size, capacity, cut=None, **how):
    """Run a small ring, with link ``cut`` = (sender, offset, resets) cut; returns the links and the outcomes."""
    inputs = random_inputs(7, size, [(7, "f4"), (3, "f8")])
    links = [Link(Random(rank), window=19, capacity=capacity) for rank in range(size)]
    if cut is not None:
        sender, links[sender].cut_after, links[sender].resets = cut[0], cut[1], cut[2]
    outcomes = simulate(lambda: all_ranks(inputs, ring_of(links), **how))
    inputs.check(finished(outcomes))
    return links, {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Exception)}


def check_cuts(size, capacity, resets, **how):
    """Cut each link of a small ring after each byte that passes through it."""
    links, failed = cut_ring(size, capacity, **how)
    assert not failed
    for sender in range(size):
        receiver = (sender + 1) % size
        for offset in range(links[sender].passed + 1):
            _, failed = cut_ring(size, capacity, (sender, offset, resets), **how)
            assert bool(failed) is (offset < links[sender].passed), "a break goes unnoticed, or harms a completed run"
            assert receiver in failed or not failed
            for rank, error in failed.items():
                assert isinstance(error, RingBroken), error
                assert isinstance(error.cause, anyio.EndOfStream | anyio.BrokenResourceError)
                assert error.side in str(error)
                # Who failed sits beside the cut, or beside one that failed and closed its streams.
                neighbour = (rank - 1 if error.side == "previous" else rank + 1) % size
                beside_cut = (rank, error.side) in ((sender, "next"), (receiver, "previous"))
                assert beside_cut or neighbour in failed, (rank, error)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(("size", "capacity"), [(2, 1 << 30), (3, 1 << 30), (3, 11), (4, 40)])
def test_a_link_that_breaks_at_any_byte_ends_runs_but_falsifies_none(size, capacity, resets):
    check_cuts(size, capacity, resets)


@pytest.mark.trio
async def test_a_break_while_nothing_can_be_received_is_seen_by_sending(autojump_clock):
    """The next rank takes nothing and goes away; the previous one is silent: only sending can notice."""
    inputs = random_inputs(0, 3, [(50, "f4")])
    links = [Link(Random(0), capacity=8) for _ in range(3)]
    ends = [link.ends() for link in links]

    async def run():
        with pytest.raises(RingBroken, match="to the next") as caught:
            await one_rank(inputs, 0, (ends[2][1], ends[0][0]), inputs.segments(0))
        assert caught.value.side == "next"
        assert isinstance(caught.value.cause, anyio.BrokenResourceError)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await ends[0][1].aclose()


@pytest.mark.trio
@pytest.mark.parametrize("side", ["previous", "next"])
async def test_a_stream_closed_by_ones_own_side_ends_the_run(side, autojump_clock):
    inputs = random_inputs(0, 3, [(50, "f4")])
    previous, next = Link(Random(0)), Link(Random(0), capacity=8)
    streams = {"previous": previous.ends()[1], "next": next.ends()[0]}
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def run():
                with pytest.raises(RingBroken) as caught:
                    await one_rank(inputs, 0, (streams["previous"], streams["next"]), inputs.segments(0))
                assert caught.value.side == side

            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await streams[side].aclose()


# ---------------------------------------------------------------- hostile and slow neighbours


async def against(data, *, size=3, inputs=None, closes=False, **how):
    """Run rank 0 against a previous rank that sends ``data`` and a next one that takes everything."""
    inputs = inputs or random_inputs(0, size, [(12, "f4")])
    (sends, previous), (next, takes) = Link(Random(0)).ends(), Link(Random(0)).ends()
    sends.try_send([data])
    if closes:
        await sends.aclose()
    with anyio.fail_after(10):
        try:
            return await one_rank(inputs, 0, (previous, next), inputs.segments(0), **how)
        finally:
            assert takes.link.way.startswith(b"HRG1" + struct.pack("<I", len(HEADER)) + HEADER)


OPENING = b"HRG1" + struct.pack("<I", 4) + HEADER


@pytest.mark.trio
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\0" * 100, "begin"),
        (b"HRG2" + OPENING[4:], "begin"),
        (b"HRG1\xff\xff\xff\xff", "header of 4294967295"),
        (OPENING + b"\x01\x10\0\0", "meta of 4097"),
    ],
)
async def test_garbage_from_the_previous_rank_is_refused(data, says, autojump_clock):
    with pytest.raises(RingProtocolError, match=says):
        await against(data)


@pytest.mark.trio
async def test_a_refused_header_ends_the_run_with_the_callers_own_error(autojump_clock):
    def refuse(header):
        raise PermissionError(header)

    inputs = random_inputs(0, 3, [(12, "f4")])
    with pytest.raises(PermissionError, match="head"):
        await against(OPENING + bytes(500), inputs=inputs, check_header=refuse)
    inputs.check([])


@pytest.mark.trio
async def test_a_previous_rank_that_stops_short_is_an_end(autojump_clock):
    for length in range(len(OPENING) + 8 + 15):
        data = (OPENING + struct.pack("<I", 3) + b"two" + bytes(500))[:length]
        with pytest.raises(RingBroken) as caught:
            await against(data, closes=True)
        assert caught.value.side == "previous"
        assert isinstance(caught.value.cause, anyio.EndOfStream)


@pytest.mark.trio
async def test_a_finished_chunk_that_cannot_be_finished_yet_is_refused(autojump_clock):
    """Rank 0 of 2 could not send its share, and yet the other one claims to have the sum of it."""
    inputs = random_inputs(0, 2, [(40, "f4")])
    (sends, previous), (next, _) = Link(Random(0)).ends(), Link(Random(0), capacity=30).ends()
    sends.try_send([OPENING + struct.pack("<I", 5) + b"1:1.0" + bytes(80) + bytes(80)])
    with pytest.raises(RingProtocolError, match="before this rank's share"), anyio.fail_after(10):
        await one_rank(inputs, 0, (previous, next), inputs.segments(0), finish=lambda metas: None)


async def check_silent_previous(module):
    """The previous rank says nothing yet; what this one has to say goes out all the same, as fast as it is taken."""
    inputs = random_inputs(0, 3, [(50, "f4")])
    (_, previous), (next, takes) = Link(Random(0)).ends(), Link(Random(0), capacity=8).ends()
    taken = b""
    async with anyio.create_task_group() as tasks:

        async def run():
            await one_rank(inputs, 0, (previous, next), inputs.segments(0), module=module)

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        while takes.link.way:
            buffer = bytearray(5)
            taken += buffer[: takes.try_receive_into(memoryview(buffer))]
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    chunk = inputs.segments(0)[0][33:].tobytes()
    assert taken == OPENING + struct.pack("<I", len(inputs.meta(0))) + inputs.meta(0) + chunk


@pytest.mark.anyio
async def test_a_silent_previous_rank_does_not_keep_this_one_from_sending():
    await check_silent_previous(real)


@pytest.mark.trio
async def test_a_slow_receiver_slows_the_ring_and_nothing_else(autojump_clock):
    """One link moves a few bytes per second for a virtual hour; everybody waits without spinning and finishes."""
    inputs = random_inputs(3, 4, [(3000, "f4")])
    links = [Link(Random(rank)) for rank in range(4)]
    links[2].capacity = 0

    async def trickle():
        while True:
            await anyio.sleep(1)
            links[2].capacity = len(links[2].way) + 7
            links[2].wake("send")
            await anyio.lowlevel.checkpoint()
            links[2].capacity = 0

    began = trio.current_time()
    outcomes: list = [None] * 4
    async with anyio.create_task_group() as tasks:

        async def run(rank):
            segments = inputs.segments(rank)
            await one_rank(inputs, rank, streams[rank], segments)
            outcomes[rank] = segments

        streams = ring_of(links)
        tasks.start_soon(trickle)
        async with anyio.create_task_group() as ranks:
            for rank in range(4):
                ranks.start_soon(run, rank)
        tasks.cancel_scope.cancel()
    inputs.check(outcomes)
    assert trio.current_time() - began > 2000


# ---------------------------------------------------------------- the event loop


async def check_other_tasks_run(module):
    """Streams that are always ready: the pump must yield on its own. Also, what ``progress`` is told."""
    inputs = Inputs([np.full(4_000_000, rank, np.float32) for rank in (1, 2)], [1.0, 1.0])
    turns = 0
    told: list[int] = []

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        streams = ring_of([Link(Random(rank)) for rank in range(2)])
        outcomes = await all_ranks(inputs, streams, module=module, sub_chunk=256 * 1024, progress=told.append)
        tasks.cancel_scope.cancel()
    inputs.check(outcomes)
    assert turns >= 16_000_000 / real.YIELD_EVERY
    each_way = 8 + len(HEADER) + 4 + len(inputs.meta(0)) + 16_000_000
    assert sorted(told)[-2:] == [2 * each_way] * 2  # of both ranks
    assert len(told) >= 2 * 16_000_000 / real.YIELD_EVERY


@pytest.mark.anyio
async def test_other_tasks_run_meanwhile_and_progress_is_told():
    await check_other_tasks_run(real)


@pytest.mark.anyio
async def test_a_cancelled_run_ends_at_once_and_leaves_the_inputs_whole():
    inputs = random_inputs(0, 3, [(1000, "f4")])
    (_, previous), (next, _) = Link(Random(0)).ends(), Link(Random(0), capacity=100).ends()
    with anyio.move_on_after(0.01) as scope:
        await one_rank(inputs, 0, (previous, next), inputs.segments(0))
    assert scope.cancelled_caught
    inputs.check([])


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_beforehand_sends_nothing():
    inputs = random_inputs(0, 3, [(10, "f4")])
    (_, previous), (next, takes) = Link(Random(0)).ends(), Link(Random(0)).ends()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one_rank(inputs, 0, (previous, next), inputs.segments(0))
    assert not takes.link.way


@pytest.mark.trio
async def test_arguments_that_cannot_be_are_our_own_error():
    inputs = random_inputs(0, 3, [(10, "f4")])
    with pytest.raises(LocalProtocolError, match="needs a stream"):
        await one_rank(inputs, 0, (None, None), inputs.segments(0))
    with pytest.raises(LocalProtocolError, match="rank 1 in a ring of 1"):
        await one_rank(inputs, 1, (None, None), inputs.segments(0), size=1)
