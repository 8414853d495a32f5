"""What all peers of a run must agree on; one that joins by hand asks for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from swarm.errors import UserError

SIZERS = ("equal", "proportional")


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        data: the data set: "mnist-5k", "digits", or a directory.
        digest: SHA-256 of the data set, so that two peers do not train on different images; "" if not known yet.
        rounds: how many rounds to train.
        batch: images per round, over all peers.
        founders: how many peers the first round waits for.
        sizer: how the batch is shared out: "equal" or "proportional" (to speed).
        seed: of the first parameters and of the order of the images.
    """

    data: str = "mnist-5k"
    digest: str = ""
    rounds: int = 200
    batch: int = 256
    founders: int = 1
    sizer: str = "equal"
    seed: int = 1

    def to_cbor(self) -> dict[str, Any]:
        """A mapping of plain values."""
        return asdict(self)

    @classmethod
    def from_cbor(cls, value: object) -> Settings:
        """Settings that a peer sent.

        Raises:
            UserError: they are not what ``to_cbor`` makes.
        """
        kinds = {"data": str, "digest": str, "rounds": int, "batch": int, "founders": int, "sizer": str, "seed": int}
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise UserError("the peer's settings are not those of this program; use the same version of it")
        if any(not isinstance(value[name], kinds[name]) for name in names):
            raise UserError("the peer's settings are of the wrong types; use the same version of this program")
        settings = cls(**value)
        if not (1 <= settings.rounds <= 10**6 and 1 <= settings.batch <= 10**6 and 1 <= settings.founders <= 1000):
            raise UserError("the peer's settings are out of bounds; use the same version of this program")
        if settings.sizer not in SIZERS or not 0 <= settings.seed < 2**31:
            raise UserError("the peer's sizer or seed is unknown here; use the same version of this program")
        return settings
