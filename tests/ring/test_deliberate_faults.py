"""Faults put into the schedule, the exchange and the pump on purpose: the suite's checks must catch each of them.

A fault is a replacement in the source of a module. The text to be replaced must be there exactly once, so that this
list keeps step with the code. Every check also runs on the code as it is, where it must pass.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio

from hydra_allreduce.ring import exchange, pump, schedule
from hydra_allreduce.ring.errors import RingProtocolError

from . import test_exchange, test_pump
from .harness import random_inputs
from .test_schedule import check_cut, check_schedule

MODULES = {"schedule": schedule, "exchange": exchange, "pump": pump}


def build(module: str = "", replacements: dict[str, str] | None = None) -> dict[str, types.ModuleType]:
    """The three modules compiled anew, wired to one another, with ``replacements`` made in the source of one."""
    built: dict[str, types.ModuleType] = {}
    for name, original in MODULES.items():
        source = Path(original.__file__).read_text(encoding="utf-8")
        for old, new in (replacements or {}).items() if name == module else ():
            assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {name}.py"
            source = source.replace(old, new)
        made = types.ModuleType(original.__name__)
        exec(compile(source, original.__file__, "exec"), made.__dict__)
        for other in built.values():
            for exported in vars(made):
                if exported in vars(other) and getattr(vars(other)[exported], "__module__", "") == other.__name__:
                    setattr(made, exported, vars(other)[exported])
        built[name] = made
    return built


# ---------------------------------------------------------------- the checks


def check_schedules(modules):
    for size in (2, 3, 5):
        check_schedule(modules["schedule"], size)
    for lengths in ([7], [0, 40], [3, 64, 1]):
        check_cut(modules["schedule"], lengths, [8] * len(lengths), 3, 16)


def check_exchanges(modules):
    for size in (2, 3, 5):
        for op in ("mean", "sum"):
            inputs = random_inputs(size, size, [(61, "f4"), (20, "f8")], op)
            for seed in range(10):
                test_exchange.check_ring(inputs, Random(seed), module=modules["exchange"], rounds=2)


def check_hostile_exchange(modules):
    """A run that must end at the first bad byte, in front of a header check that refuses everything."""

    class Refused(Exception):
        pass

    def refuse(header):
        raise Refused

    victim, segments = test_exchange.victim(module=modules["exchange"], check_header=refuse)
    before = segments[0].tobytes()
    with pytest.raises(Refused):
        test_exchange.feed(victim, test_exchange.OPENING + bytes(100))
    assert segments[0].tobytes() == before
    for opening in (b"HRG1\xff\xff\xff\x7f", test_exchange.OPENING + b"\xff\xff\xff\x7f"):
        victim, _ = test_exchange.victim(module=modules["exchange"])
        with pytest.raises(RingProtocolError):
            test_exchange.feed(victim, opening)
    inputs = random_inputs(0, 2, [(12, "f4")])
    ring = test_exchange.exchanges(inputs, [inputs.segments(0), inputs.segments(1)], module=modules["exchange"])
    early = test_exchange.wire(ring[1])
    with pytest.raises(RingProtocolError):
        test_exchange.feed(ring[0], early + bytes(24))


def check_pumps(modules):
    for size in (2, 3, 5):
        inputs = random_inputs(size, size, [(61, "f4"), (20, "f8")])
        for seed in range(3):
            test_pump.check_pump(inputs, Random(seed), window=23, capacity=40, rounds=2, module=modules["pump"])


def check_breaks(modules):
    test_pump.check_cuts(3, 40, False, module=modules["pump"])


def check_lone_sending(modules):
    trio.run(test_pump.check_silent_previous, modules["pump"])


def check_politeness(modules):
    trio.run(test_pump.check_other_tasks_run, modules["pump"])


CHECKS = [
    check_schedules,
    check_exchanges,
    check_hostile_exchange,
    check_pumps,
    check_breaks,
    check_lone_sending,
    check_politeness,
]


@dataclass(frozen=True)
class Fault:
    what: str
    module: str
    replacements: dict[str, str]
    caught_by: Callable[[dict[str, types.ModuleType]], None]


FAULTS = [
    Fault(
        "chunk bounds off by one",
        "schedule",
        {"length * (chunk + 1) // size": "length * (chunk + 1) // size - 1"},
        check_schedules,
    ),
    Fault(
        "a rank adds to another chunk than the one that comes",
        "schedule",
        {"(rank - 2 - s) % size": "(rank - 3 - s) % size"},
        check_schedules,
    ),
    Fault(
        "an element between two sub-chunks is left out",
        "schedule",
        {"            start = stop": "            start = stop + 1"},
        check_schedules,
    ),
    Fault(
        "the reduction of one sub-chunk is skipped",
        "exchange",
        {"add(mine, arriving": "span.start == 4 or add(mine, arriving"},
        check_exchanges,
    ),
    Fault(
        "the owner scales twice",
        "exchange",
        {"                scale(mine, factor)": "                scale(mine, factor); scale(mine, factor)"},
        check_exchanges,
    ),
    Fault(
        "everybody scales what is finished",
        "exchange",
        {"yield place": "yield place; scale(self._segments[span.segment][span.start : span.stop], 1 / self._size)"},
        check_exchanges,
    ),
    Fault(
        "a sub-chunk is sent on before it is reduced",
        "exchange",
        {
            "yield arriving.data": (
                "meta = meta and self._queue_partial(chunk, meta); self._queue(self._view(span)); yield arriving.data"
            ),
            "                meta = None\n            self._queue(self._view(span))": "                meta = None",
        },
        check_exchanges,
    ),
    Fault(
        "stale scratch is added",
        "exchange",
        {"yield arriving.data": "stale = arriving.copy(); yield arriving.data; arriving = stale"},
        check_exchanges,
    ),
    Fault(
        "a finished chunk does not go on",
        "exchange",
        {"            if forwards:": "            if forwards and chunk:"},
        check_exchanges,
    ),
    Fault(
        "a finished chunk goes on once too often",
        "exchange",
        {"forwards=number + 1 < len(self._steps)": "forwards=True"},
        check_exchanges,
    ),
    Fault(
        "metas are kept under the wrong rank",
        "exchange",
        {"self._metas[meta_of] = meta": "self._metas[meta_of - 1] = meta"},
        check_exchanges,
    ),
    Fault(
        "the rest of a buffer that was sent in part is lost",
        "exchange",
        {"                outgoing.appendleft(first[count:])\n": ""},
        check_exchanges,
    ),
    Fault("the header is not checked", "exchange", {"self._check_header(header)": ""}, check_hostile_exchange),
    Fault("any size is allocated", "exchange", {"if length > limit:": "if length < 0:"}, check_hostile_exchange),
    Fault(
        "finished data may overtake this rank's share",
        "exchange",
        {"if self._overwrites > self._sent:": "if self._overwrites < 0:"},
        check_hostile_exchange,
    ),
    Fault(
        "the end of the stream is nothing received",
        "pump",
        {"    if count is None:": "    if not count:"},
        check_breaks,
    ),
    Fault(
        "a break while sending passes for a full buffer",
        "pump",
        {'        raise RingBroken("next", error) from error': "        return 0"},
        check_breaks,
    ),
    Fault(
        "the wrong side is named",
        "pump",
        {'RingBroken("next", error)': 'RingBroken("previous", error)'},
        check_breaks,
    ),
    Fault("nobody waits for room to send", "pump", {"[next] if exchange.outgoing else []": "[]"}, check_lone_sending),
    Fault(
        "nobody waits for something to receive",
        "pump",
        {"[previous] if exchange.wanted is not None else []": "[]"},
        check_pumps,
    ),
    Fault(
        "a byte that was taken is sent again",
        "pump",
        {"exchange.sent(count)": "exchange.sent(max(1, count - 1))"},
        check_pumps,
    ),
    Fault(
        "the run is over when all has come, sent or not",
        "pump",
        {"while exchange.wanted is not None or exchange.outgoing:": "while exchange.wanted is not None:"},
        check_pumps,
    ),
    Fault("no other task gets a turn", "pump", {"if unyielded < YIELD_EVERY:": "if unyielded:"}, check_politeness),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checks_pass_on_the_code_as_it_is(check):
    check(build())


def failures(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in failures(inner)]
    return [error]


# What a check may end with: an assertion, an error that a sound ring never raises, a deadline of the virtual clock.
CAUGHT = (AssertionError, RingProtocolError, TimeoutError, ValueError, KeyError, IndexError, pytest.fail.Exception)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_every_fault_is_caught(fault):
    modules = build(fault.module, fault.replacements)
    with pytest.raises((*CAUGHT, BaseExceptionGroup)) as caught:
        fault.caught_by(modules)
    assert all(isinstance(error, CAUGHT) for error in failures(caught.value)), caught.value
