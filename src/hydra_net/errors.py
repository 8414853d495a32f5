"""The errors of hydra_net. Each names the peer or the address it is about, its cause, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra_net.address import Address
    from hydra_net.identity import PeerId

__all__ = [
    "ConnectionLost",
    "DialError",
    "HydraError",
    "InvalidAddress",
    "KeyFileError",
    "LocalProtocolError",
    "NodeClosed",
    "NodeFailed",
    "PeerUnreachable",
    "RemoteError",
    "RemoteProtocolError",
    "SelfDial",
    "VersionMismatch",
    "WrongPeer",
]


class HydraError(Exception):
    """The base of every error that Hydra raises on purpose."""


class LocalProtocolError(HydraError):
    """This side used the library in a way that the protocol or an object's state does not allow: a bug here."""


class RemoteProtocolError(HydraError):
    """A peer broke the protocol. Its connection is closed; nothing else is affected.

    ``peer`` is None while the peer is not verified yet (inside the handshake).
    """

    def __init__(self, peer: PeerId | None, what: str) -> None:
        super().__init__(f"peer {peer.short if peer is not None else '(not verified)'} broke the protocol: {what}")
        self.peer = peer
        self.what = what


class InvalidAddress(HydraError, ValueError):
    """A text that is no address. The message says what is wrong and how an address looks."""


class KeyFileError(HydraError):
    """A key file that cannot be used: damaged, or readable by others. The message says what to do."""


class DialError(HydraError):
    """No connection to ``address``; ``cause`` says why (also as ``__cause__``)."""

    def __init__(self, address: Address | str, cause: BaseException | str) -> None:
        super().__init__(f"cannot connect to {address}: {_say(cause)}")
        self.address = address
        self.cause = cause
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class WrongPeer(HydraError):
    """Another peer than the expected one answered at an address. Nothing was sent to it but the handshake."""

    def __init__(self, expected: PeerId, actual: PeerId) -> None:
        super().__init__(
            f"expected peer {expected} but {actual} answered: the address belongs to another peer now, "
            "or somebody stands in between; ask for the peer's current address"
        )
        self.expected = expected
        self.actual = actual


class SelfDial(HydraError):
    """A node reached itself: one of its own addresses was given as a peer's."""

    def __init__(self) -> None:
        super().__init__("this address is this node's own; give another peer's address")


class VersionMismatch(HydraError):
    """Two peers have no wire version in common. ``ours`` and ``theirs`` are (lowest, highest)."""

    def __init__(self, peer: PeerId | None, ours: tuple[int, int], theirs: tuple[int, int]) -> None:
        who = f"peer {peer.short}" if peer is not None else "the peer"
        older = "this side" if ours[1] < theirs[0] else "the peer"
        super().__init__(
            f"{who} speaks wire versions {_versions(theirs)}, this side {_versions(ours)}: "
            f"install a newer hydra-swarm on {older}, which is the older one"
        )
        self.peer = peer
        self.ours = ours
        self.theirs = theirs


class PeerUnreachable(HydraError):
    """No connection to a peer. ``causes`` has one error for each address tried, oldest first."""

    def __init__(self, peer: PeerId, causes: Sequence[BaseException] = (), *, what: str = "cannot be reached") -> None:
        reasons = "; ".join(_say(cause) for cause in causes) or "no address of it is known (use node.learn or connect)"
        super().__init__(f"peer {peer.short} {what}: {reasons}")
        self.peer = peer
        self.causes = tuple(causes)
        if causes:
            self.__cause__ = causes[-1]


class ConnectionLost(PeerUnreachable):
    """The connection was lost while an answer was awaited: the peer may or may not have handled the request."""

    def __init__(self, peer: PeerId, cause: BaseException) -> None:
        super().__init__(peer, (cause,), what="was lost before its answer came (it may have handled the request)")


class RemoteError(HydraError):
    """A peer's handler of ``method`` failed. ``kind`` is the name of its error's type, ``message`` its text.

    ``kind`` is "no such method" if the peer has no handler, "busy" if this side has too many requests there.
    """

    def __init__(self, peer: PeerId, method: str, kind: str, message: str) -> None:
        super().__init__(f"peer {peer.short} could not answer {method!r}: {kind}{': ' if message else ''}{message}")
        self.peer = peer
        self.method = method
        self.kind = kind
        self.message = message


class NodeFailed(HydraError):
    """The node is not running any more; ``cause`` says why. Make a new one."""

    def __init__(self, what: str, cause: BaseException | None = None) -> None:
        super().__init__(what if cause is None else f"{what}: {_say(cause)}")
        self.cause = cause
        if cause is not None:
            self.__cause__ = cause


class NodeClosed(NodeFailed):
    """The node was closed in an orderly way: its ``async with`` block has ended or is ending."""


def _say(cause: BaseException | str) -> str:
    if isinstance(cause, str):
        return cause
    text = str(cause)
    if isinstance(cause, HydraError) and text:
        return text
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def _versions(bounds: tuple[int, int]) -> str:
    return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"
