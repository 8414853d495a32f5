"""Identities: names, key files, signatures."""

import os
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_net import Identity, KeyFileError, PeerId, peer_id, verify

SEED = bytes(range(32))


@given(st.binary(min_size=32, max_size=32))
def test_a_peer_id_has_one_text_form(raw):
    peer = PeerId(raw)
    text = str(peer)
    assert len(text) == 52
    assert text == text.lower()
    assert PeerId.parse(text) == peer
    assert peer == raw
    assert hash(peer) == hash(raw)
    assert text.startswith(peer.short)
    assert peer.short in repr(peer)


@given(st.text(max_size=80))
def test_other_text_is_no_peer_id(text):
    try:
        peer = PeerId.parse(text)
    except ValueError:
        return
    assert str(peer) == text


def test_a_peer_id_has_no_second_spelling():
    text = str(Identity.from_seed(SEED).id)
    stray_bits = text[:-1] + chr(ord(text[-1]) + 1)  # the last character holds one bit only
    for other in (text.upper(), text + "=", text + "====", " " + text, text[:-1], stray_bits, ""):
        with pytest.raises(ValueError):
            PeerId.parse(other)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_peer_id_has_32_bytes(size):
    with pytest.raises(ValueError, match="32 bytes"):
        PeerId(bytes(size))
    with pytest.raises(ValueError, match="32 bytes"):
        peer_id(bytes(size))


def test_the_identity_of_a_seed_never_changes():
    identity = Identity.from_seed(SEED)
    assert identity.public_key.hex() == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    assert identity.id == peer_id(identity.public_key)
    # What is signed is part of the wire format: this value may only change with the wire version.
    assert identity.sign("test", b"message").hex() == EXPECTED_SIGNATURE


EXPECTED_SIGNATURE = (
    "6844180905e9804c90c6a652b0f759c34def5e77b7db054b4003e99bc9fa7d4d"
    "b1e51380619cd2086757075f9af64a7ca8b7f6606d4209af0a2abd292058e40d"
)


def test_a_signature_counts_for_its_domain_message_and_key_only():
    identity, other = Identity.from_seed(SEED), Identity.generate()
    signature = identity.sign("a", b"bc")
    assert verify(identity.public_key, "a", b"bc", signature)
    assert not verify(identity.public_key, "ab", b"c", signature)
    assert not verify(identity.public_key, "b", b"bc", signature)
    assert not verify(identity.public_key, "a", b"bd", signature)
    assert not verify(other.public_key, "a", b"bc", signature)


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_malformed_keys_and_signatures_are_just_not_valid(key, signature):
    assert not verify(key, "a", b"message", signature)
    assert not verify(Identity.from_seed(SEED).public_key, "a", b"message", signature)


@pytest.mark.parametrize("domain", ["", "a" * 256])
def test_a_domain_is_bounded(domain):
    with pytest.raises(ValueError, match="domain"):
        Identity.from_seed(SEED).sign(domain, b"")


def test_a_key_file_is_private_and_brings_the_identity_back(tmp_path):
    path = tmp_path / "key"
    identity = Identity.generate()
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).id == identity.id
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_saving_never_destroys_another_identity(tmp_path):
    path = tmp_path / "key"
    first, second = Identity.generate(), Identity.generate()
    first.save(path)
    with pytest.raises(FileExistsError):
        second.save(path)
    assert Identity.load(path).id == first.id
    second.save(path, overwrite=True)
    assert Identity.load(path).id == second.id
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "key"
    identity = Identity.load_or_create(path)
    assert Identity.load_or_create(path).id == identity.id
    with pytest.raises(FileExistsError):
        Identity.generate().save(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o666])
def test_a_key_file_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "key"
    Identity.generate().save(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=r"chmod 600"):
        Identity.load(path)
    with pytest.raises(KeyFileError):
        Identity.load_or_create(path)


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_file_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="not a key file"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        Identity.load(tmp_path / "nothing")
    with pytest.raises(OSError):
        Identity.load(tmp_path)


def test_creating_in_many_threads_at_once_makes_one_identity(tmp_path):
    path = tmp_path / "deep" / "key"
    found = []
    threads = [threading.Thread(target=lambda: found.append(Identity.load_or_create(path).id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(dict.fromkeys(found)) == 1


def test_an_identity_shows_no_secret():
    identity = Identity.from_seed(SEED)
    assert repr(identity) == f"Identity({identity.id.short})"
