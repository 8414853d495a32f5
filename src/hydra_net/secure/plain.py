"""The plain handshake: both sides prove who they are, nothing is encrypted.

On the wire, each message but the first eight bytes with its length in 4 bytes in front:

    initiator                         responder
    magic, HELLO         ->
                         <-           magic, HELLO, PROOF
    PROOF                ->

A proof is a signature over the sender's role and the SHA-256 of both hellos. Each hello has a fresh nonce, so no proof
can be replayed; each side signs its own role, so none can be reflected; and since everything that is agreed on stands
in the hellos, nobody in between can alter it. (Somebody in between can read and alter what follows: that is what
"plain" means.) The responder proves itself first: an initiator shows nothing but its hello to a stranger.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hydra_net.errors import HydraError, LocalProtocolError, RemoteProtocolError, SelfDial, WrongPeer
from hydra_net.identity import Identity, PeerId, verify
from hydra_net.secure.hello import Hello

__all__ = ["MAGIC", "Established", "PlainHandshake", "Role"]

Role: TypeAlias = Literal["initiator", "responder"]

MAGIC = b"hydra/P\n"
"""The letter names what secures the connection, so that two sides which differ there can say so."""

_DOMAIN = "hydra plain handshake 1"
_PREFIX = b"hydra/"
_SIGNATURE = 64
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Established:
    """What a handshake comes to: ``peer`` has proven itself, both hellos are as they were sent."""

    peer: PeerId
    wire: int
    features: tuple[str, ...]
    local_hello: Hello
    remote_hello: Hello


class PlainHandshake:
    """One side of the handshake. Sans-IO: give it exactly ``needs`` bytes with :meth:`take` until ``result`` is set.

    After each step, and after an error too, what :meth:`outgoing` returns is to be sent.

    ``check`` is called once with the other side's hello: by the initiator when that side has proven itself, by the
    responder before. It may raise a HydraError to end the handshake; the responder's may return a refusal (kind, text),
    which the initiator gets as ``remote_hello.refused``, or None.

    :meth:`take` raises RemoteProtocolError for everything malformed or unproven, VersionMismatch, WrongPeer if the
    other side is not ``expected``, SelfDial, and what ``check`` raises. Afterwards the connection must be closed.
    """

    def __init__(
        self,
        role: Role,
        identity: Identity,
        hello: Hello,
        *,
        limit: int,
        expected: PeerId | None = None,
        check: Callable[[Hello], tuple[str, str] | None] = lambda _: None,
    ) -> None:
        if hello.key != identity.public_key:
            raise LocalProtocolError("a hello has to carry its sender's own key")
        self._role = role
        self._identity = identity
        self._hello = hello
        self._limit = limit
        self._expected = expected
        self._check = check
        self._out: list[bytes] = []
        self._hellos: dict[Role, bytes] = {}
        self._remote: Hello | None = None
        self._step: Callable[[bytes], None] = self._magic
        self.needs = len(MAGIC) + _LENGTH.size
        self.result: Established | None = None
        if role == "initiator":
            self._say_hello()

    def outgoing(self) -> bytes:
        """Take what is to be sent now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def take(self, data: bytes) -> None:
        """Process the next ``needs`` bytes from the other side."""
        if self.result is not None or len(data) != self.needs:
            raise LocalProtocolError(f"the handshake needs {self.needs} bytes, not {len(data)}")
        self._step(data)

    # ------------------------------------------------------------------ the steps, in order

    def _magic(self, data: bytes) -> None:
        magic = data[: len(MAGIC)]
        if magic != MAGIC:
            if magic.startswith(_PREFIX):
                raise RemoteProtocolError(
                    None, f"it secures connections in another way ({magic!r}): give both nodes the same security="
                )
            raise RemoteProtocolError(None, f"its first bytes, {magic!r}, are not Hydra's: is this another service?")
        (size,) = _LENGTH.unpack(data[len(MAGIC) :])
        if not 0 < size <= self._limit:
            raise RemoteProtocolError(None, f"a hello of {size} bytes, allowed are {self._limit}")
        self.needs = size
        self._step = self._their_hello

    def _their_hello(self, data: bytes) -> None:
        other: Role = "responder" if self._role == "initiator" else "initiator"
        self._hellos[other] = data
        try:
            self._remote = remote = Hello.decode(data, limit=self._limit, ours=self._hello.versions)
            if remote.key == self._identity.public_key:
                raise SelfDial
            if self._role == "responder":
                refusal = self._check(remote)
                if refusal is not None:
                    self._hello = replace(self._hello, refused=refusal)
        except HydraError:
            if self._role == "responder":
                self._say_hello()  # so that the other side learns our versions, or that it dialled itself
            raise
        if self._role == "responder":
            self._say_hello()
            self._prove()
        elif self._expected is not None and remote.peer != self._expected:
            raise WrongPeer(self._expected, remote.peer)
        self.needs = _LENGTH.size + _SIGNATURE
        self._step = self._their_proof

    def _their_proof(self, data: bytes) -> None:
        assert self._remote is not None
        other: Role = "responder" if self._role == "initiator" else "initiator"
        (size,) = _LENGTH.unpack_from(data)
        if size != _SIGNATURE or not verify(self._remote.key, _DOMAIN, self._proven(other), data[_LENGTH.size :]):
            raise RemoteProtocolError(None, f"it could not prove to be {self._remote.peer.short}")
        if self._role == "initiator":
            self._check(self._remote)
            self._prove()
        self.needs = 0
        self.result = Established(
            self._remote.peer,
            min(self._hello.versions[1], self._remote.versions[1]),
            tuple(name for name in self._hello.features if name in self._remote.features),
            self._hello,
            self._remote,
        )

    def _say_hello(self) -> None:
        hello = self._hellos[self._role] = self._hello.encode()
        if len(hello) > self._limit:
            raise LocalProtocolError(
                f"a hello of {len(hello)} bytes, allowed are {self._limit}: listen on fewer addresses"
            )
        self._out.append(MAGIC + _LENGTH.pack(len(hello)) + hello)

    def _prove(self) -> None:
        signature = self._identity.sign(_DOMAIN, self._proven(self._role))
        self._out.append(_LENGTH.pack(len(signature)) + signature)

    def _proven(self, role: Role) -> bytes:
        transcript = hashlib.sha256(MAGIC)
        for hello in (self._hellos["initiator"], self._hellos["responder"]):
            transcript.update(_LENGTH.pack(len(hello)) + hello)
        return role.encode("ascii") + transcript.digest()
