"""Who a peer is: an Ed25519 key pair, and the hash of its public half as the name."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import stat
import struct
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hydra_net.errors import KeyFileError

__all__ = ["Identity", "PeerId", "peer_id", "verify"]

_TEXT_LENGTH = 52
_MAX_KEY_FILE = 16 * 1024


class PeerId(bytes):
    """The name of a peer: the SHA-256 of its public key, 32 bytes. Text form: 52 characters of lower-case base32.

    Compares, hashes and sorts like the bytes it is. Raises ValueError if ``value`` has not 32 bytes.
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> PeerId:
        if len(value) != 32:
            raise ValueError(f"a peer id has 32 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> PeerId:
        """The peer id that ``text`` names. Strict: raises ValueError for anything but the one right spelling."""
        if len(text) != _TEXT_LENGTH or not text.isascii():
            raise ValueError(f"a peer id has {_TEXT_LENGTH} characters of base32: {text[:60]!r}")
        try:
            peer = cls(base64.b32decode(text.upper() + "===="))
        except ValueError:
            raise ValueError(f"not a peer id: {text!r} has characters outside a-z and 2-7") from None
        if str(peer) != text:
            # Upper case, or bits set beyond the 256: one peer must not have two names.
            raise ValueError(f"not a peer id in its normal form: {text!r}")
        return peer

    @property
    def short(self) -> str:
        """The first 8 characters of the text form: for people, not for comparing."""
        return str(self)[:8]

    def __str__(self) -> str:
        return base64.b32encode(self).decode("ascii").rstrip("=").lower()

    def __repr__(self) -> str:
        return f"PeerId({self.short})"


def peer_id(public_key: bytes) -> PeerId:
    """The peer id of a raw Ed25519 public key (32 bytes; ValueError otherwise)."""
    if len(public_key) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return PeerId(hashlib.sha256(public_key).digest())


def verify(public_key: bytes, domain: str, message: bytes, signature: bytes) -> bool:
    """True if ``signature`` over ``message`` in ``domain`` was made with the private half of ``public_key``.

    Never raises on bytes from a peer: a malformed key or signature is simply not valid.
    """
    if len(public_key) != 32 or len(signature) != 64:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _signed(domain, message))
    except (InvalidSignature, ValueError):
        return False
    return True


class Identity:
    """A node's key pair. Make one with :meth:`generate`, :meth:`from_seed`, :meth:`load` or :meth:`load_or_create`.

    The private key never leaves this object except by :meth:`save`.
    """

    __slots__ = ("_key", "id", "public_key")

    id: PeerId
    public_key: bytes

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()
        self.id = peer_id(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A new identity from the system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte seed, always the same. For tests: whoever knows the seed is that peer."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a key file written by :meth:`save`.

        Raises FileNotFoundError, and KeyFileError if the file is damaged or if others may read it.
        """
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is not a regular file; give the path of a key file")
            if os.name == "posix" and status.st_mode & 0o077:
                raise KeyFileError(
                    f"{path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o}), so the key may be known: "
                    f"run 'chmod 600 {path}' if you are sure that it is not, or make a new identity"
                )
            data = file.read(_MAX_KEY_FILE + 1)
        try:
            if len(data) > _MAX_KEY_FILE:
                raise ValueError("it is too large")
            key = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(
                f"{path} is not a key file: {error}; restore it from a backup or make a new identity"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"{path} holds a key of another kind than Ed25519; make a new identity in another file")
        return cls(key)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the key to ``path``: readable by the owner only, wholly or not at all, on disk when this returns.

        Raises FileExistsError if the file exists (another identity may be in it), unless ``overwrite``.
        """
        target = Path(path)
        data = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                draft.replace(target)
            else:
                _move_new(draft, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
        _sync_directory(target.parent)

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Identity:
        """Read ``path``, or make a new identity there. Two processes at once end up with the same one."""
        try:
            return cls.load(path)
        except FileNotFoundError:
            pass
        created = cls.generate()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            created.save(path)
        except FileExistsError:
            return cls.load(path)
        return created

    def sign(self, domain: str, message: bytes) -> bytes:
        """Sign ``message`` (64 bytes). ``domain`` says what it is, so it counts for nothing else.

        Signed is: "hydra", the domain's length in a byte, the domain, the message's length in 8 bytes, the message.
        Raises ValueError if the domain is empty, not ASCII or longer than 255.
        """
        return self._key.sign(_signed(domain, message))

    def __repr__(self) -> str:
        return f"Identity({self.id.short})"


def _signed(domain: str, message: bytes) -> bytes:
    tag = domain.encode("ascii")
    if not 0 < len(tag) < 256:
        raise ValueError("a signature's domain has 1 to 255 characters")
    return b"hydra" + bytes([len(tag)]) + tag + struct.pack(">Q", len(message)) + message


def _move_new(draft: Path, target: Path) -> None:
    """Give ``draft`` the name ``target`` unless that exists. A hard link does so in one step."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links (FAT, some network and phone storage).
        if target.exists():
            raise FileExistsError(f"{target} exists") from None
        draft.replace(target)


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return  # directories cannot be opened elsewhere
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
