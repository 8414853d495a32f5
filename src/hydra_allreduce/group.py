"""The group: the members of a run, and the rounds in which they reduce arrays together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random, SystemRandom
from types import TracebackType
from typing import TypeVar, cast

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream

from hydra_allreduce.agreement import Genesis, View
from hydra_allreduce.arrays import Arrays, Layout, Op
from hydra_allreduce.calls import Call, Delivery
from hydra_allreduce.contribution import average_metrics, check_metrics, check_weight
from hydra_allreduce.errors import GroupClosed, GroupFailed
from hydra_allreduce.group_events import GroupEvent
from hydra_allreduce.planning import Plan, Planner
from hydra_allreduce.reduction import Reduction
from hydra_allreduce.session import Session, Terms
from hydra_net import Address, Cbor, LocalProtocolError, Node, NodeFailed, PeerId, run_blocking

logger = logging.getLogger("hydra_allreduce")

A = TypeVar("A", bound=Arrays)
T = TypeVar("T")

_EVENTS_KEPT = 1024


class Group:
    """This node's membership of a run: ``async with Group(node, "digits") as group``.

    Entering returns once this member is in a view; leaving the block leaves the group at a round boundary. Every
    method may raise ``GroupClosed`` after the block and ``GroupFailed`` when the group's own machinery broke.

    Args:
        node: a running node.
        run: the run's name, or its whole ``Genesis``. Members that give different ones are in different runs.
        peers: members, or peers that may know members: addresses or peer ids. All are asked at once and again until
            they answer. Without any, this member begins the run and others join it.
        founders: how many must be there before the first round; part of the genesis, the same for all.
        min_peers: with fewer reachable members than this, this member starts no round; a call then raises
            ``TooFewPeers`` after ``lease`` seconds.
        planner: decides job sizes (``hydra_policy.planner``); None: no plans.
        stall: seconds of silence after which a member inside a round is suspected.
        lease: the same for a member that may be computing.
        rng: for the incarnation and timers; tests give a seeded one.
    """

    def __init__(
        self,
        node: Node,
        run: str | Genesis,
        *,
        peers: Sequence[str | Address | PeerId] = (),
        founders: int = 1,
        min_peers: int = 1,
        planner: Planner | None = None,
        stall: float = 3.0,
        lease: float = 30.0,
        rng: Random | None = None,
    ) -> None:
        if min_peers < 1:
            raise ValueError(f"min_peers is at least 1, not {min_peers}")
        if isinstance(run, Genesis) and founders != 1:
            raise ValueError("give founders in the Genesis when you give one")
        self._node = node
        self._genesis = run if isinstance(run, Genesis) else Genesis(run, founders=founders)
        contacts = [Address.parse(peer) if isinstance(peer, str) else peer for peer in peers]
        self._terms = Terms(contacts, min_peers, stall, lease)
        self._planner = planner
        self._rng = rng or SystemRandom()
        self._running: Session | None = None
        self._closed: GroupClosed | GroupFailed | None = GroupClosed("this group was not entered: use async with")
        self._lifetime: AbstractAsyncContextManager[None] | None = None
        self._watchers: list[MemoryObjectSendStream[GroupEvent]] = []
        self._calling = False
        self._returned = 0.0

    # ------------------------------------------------------------------------------------------ life

    async def __aenter__(self) -> Group:
        if self._lifetime is not None:
            raise LocalProtocolError("a Group can be entered once; make a new one to join again")
        self._lifetime = self._live()
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._lifetime is not None
        return await self._lifetime.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        session = Session(self._node, self._genesis, self._terms, self._planner, self._rng)
        body_error: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, session, tasks.cancel_scope)
            try:
                await session.joined.wait()
                self._running, self._closed = session, None
                self._returned = self._node.clock.monotonic()
                yield
                await self.leave()
            except BaseException as error:  # noqa: BLE001 - kept, to come out bare and not in an ExceptionGroup
                body_error = error
            finally:
                with suppress(NodeFailed):  # then there is nobody whom it could tell
                    session.close()
                if self._closed is None:
                    self._closed = GroupClosed("this group was closed; enter a new one to take part again")
                for watcher in self._watchers:
                    watcher.close()
                tasks.cancel_scope.cancel()
        if isinstance(self._closed, GroupFailed):
            raise self._closed from self._closed.__cause__
        if body_error is not None:
            raise body_error

    async def _run(self, session: Session, scope: anyio.CancelScope) -> None:
        try:
            await session.run()
        except Exception as error:
            cause = _bare(error)
            logger.error("the group broke", exc_info=cause)
            self._closed = GroupFailed(f"the group broke: {cause!r}; enter a new one to take part again")
            self._closed.__cause__ = cause
            session.calls.fail(self._closed)
            scope.cancel()

    @property
    def _session(self) -> Session:
        if self._closed is not None:  # an exception of its own for each caller: one that is raised again keeps frames
            raise type(self._closed)(*self._closed.args) from self._closed.__cause__
        assert self._running is not None
        if self._running.left.is_set():
            raise GroupClosed("this member has left the run; enter a new Group to take part again")
        return self._running

    # ------------------------------------------------------------------------------------------ what is known

    @property
    def view(self) -> View:
        """The membership that this member knows of."""
        view = self._session.view
        assert view is not None
        return view

    @property
    def plan(self) -> Plan | None:
        """The job sizes for the next round; None without a planner."""
        return self._session.plan

    @property
    def rounds(self) -> int:
        """The number of the last round that a call has returned, or that was over before this member joined."""
        return self._session.calls.rounds

    @property
    def contributing(self) -> bool:
        """Whether this member is in the ring, so that its arrays count."""
        return self.view.rank is not None

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[GroupEvent]]:
        """Watch the group: ``async with group.events() as changes: async for event in changes: ...``.

        Ends when the group is closed. A reader that falls more than 1,024 events behind loses the oldest.
        """
        send, receive = anyio.create_memory_object_stream[GroupEvent](_EVENTS_KEPT)

        def push(event: GroupEvent) -> None:
            while True:
                try:
                    return send.send_nowait(event)
                except anyio.WouldBlock:
                    receive.receive_nowait()

        unwatch = self._session.watch(push)
        self._watchers.append(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.remove(send)
            unwatch()

    # ------------------------------------------------------------------------------------------ rounds

    async def all_reduce(
        self,
        arrays: A,
        *,
        weight: float = 1.0,
        op: Op = "mean",
        out: A | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Reduction[A]:
        """Reduce ``arrays`` with all other contributors; every member that returns has the same bytes.

        The n-th call after joining returns the n-th round committed since, whether or not this member's arrays are in
        it (``contributed``). If members die, the others go on without them; the call returns as soon as those that are
        left agree.

        Args:
            arrays: a numpy array, a sequence of them, or a mapping from names to them: float32 or float64, any shape.
                Only read, but not to be changed until the call returns.
            weight: of this contribution in a mean: sum(w_i x_i) / sum(w_i). Finite and above 0. A sum does not use it.
            op: "mean" or "sum".
            out: where to put the result, in the structure of ``arrays``; written at the commit, never before.
            metrics: a few small numbers that are averaged along, by weight, whatever ``op`` is.

        Returns:
            The result in the structure of ``arrays``, as read-only views unless ``out`` is given.

        Raises:
            TypeError, ValueError: for arrays, weights or metrics that cannot be reduced; no round is entered.
            Mismatch: another member called this round with something else; the group lives on.
            FellBehind: this member missed rounds that can no longer be had.
            Superseded: the group had split and this round was given up.
            TooFewPeers: fewer than ``min_peers`` members for ``lease`` seconds.
            Diverged: members got different results from the same ring.

        Cancellation: the arrays may be changed again at once; the share may still count (it was copied). The next call
        returns this round's result.

        The method is the bandwidth-optimal ring of Patarasuk and Yuan (2009): reduce-scatter, then all-gather.
        """
        session = self._session
        layout = Layout.of(arrays, op)
        weight = check_weight(weight)
        if out is not None:
            layout.check_out(out)
        meta: dict[str, Cbor] = {"us": self._since_returned()}
        if weight.is_integer():
            meta["n"] = int(weight)
        if metrics:
            meta["metrics"] = check_metrics(metrics)
        if self._calling:
            raise LocalProtocolError("another call of this group is under way; rounds come one after another")
        self._calling = True
        made = self._node.clock.monotonic()
        try:
            delivery = await self._next_round(session, layout, arrays, weight, meta, made)
        finally:
            self._calling = False
            self._returned = self._node.clock.monotonic()
        return self._reduction(session, delivery, layout, out, made)

    async def barrier(self) -> View:
        """Wait until all contributors have called it; returns the view in which they met. A round of its own."""
        return (await self.all_reduce([])).view

    async def compute(self, fn: Callable[..., T], *args: object) -> T:
        """Run ``fn(*args)`` in a worker thread, so that the others hear from this member while it computes.

        Cancellation waits for ``fn`` to end: a thread cannot be stopped.
        """
        self._session  # noqa: B018 - raises if the group is closed
        return await run_blocking(fn, *args)

    async def leave(self) -> None:
        """Leave at the next round boundary; returns when the others have let this member go.

        If they do not within ``stall`` seconds it goes all the same, and they find out. Calls raise ``GroupClosed``
        from then on.
        """
        if self._closed is not None:
            return
        assert self._running is not None
        self._running.leave()
        with anyio.move_on_after(self._terms.stall):
            await self._running.left.wait()
        self._running.close()

    async def _next_round(
        self,
        session: Session,
        layout: Layout,
        arrays: Arrays,
        weight: float,
        meta: dict[str, Cbor],
        made: float,
    ) -> Delivery:
        await anyio.lowlevel.checkpoint()
        if (waiting := session.calls.take()) is not None:
            return waiting
        call = session.calls.readopt()
        if call is None:
            call = Call(session.calls.next_number(), layout, arrays, weight, meta, made)
            session.begin(call)
        try:
            await call.done.wait()
        except BaseException:
            session.calls.abandon(call)
            raise
        if call.error is not None:
            raise call.error
        assert call.delivery is not None
        return call.delivery

    def _reduction(
        self, session: Session, delivery: Delivery, layout: Layout, out: A | None, made: float
    ) -> Reduction[A]:
        record, result = delivery.record, delivery.result
        if out is not None:
            result.layout.copy_out(result.segments, out)
            arrays = out
        else:
            shape = layout if layout == result.layout else result.layout
            arrays = cast(A, shape.unpack(result.segments))
        contributors = {share.member.peer: share.weight for share in record.contributions}
        return Reduction(
            arrays=arrays,
            round=record.round,
            view=delivery.view,
            contributed=record.contribution(session.me) is not None,
            contributors=contributors,
            total_weight=sum(contributors.values()),
            metrics=average_metrics(record.contributions),
            lost=delivery.lost,
            plan=delivery.plan,
            record=record,
            attempts=delivery.attempts,
            timings=delivery.timings(made),
        )

    def _since_returned(self) -> int:
        """Microseconds since this member had its last result: what it took to compute the next arrays."""
        return max(1, round(1e6 * (self._node.clock.monotonic() - self._returned)))


def _bare(error: Exception) -> Exception:
    """The one exception that a task group has wrapped."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
