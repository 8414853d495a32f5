"""Addresses: one spelling each, nothing that a resolver might read in another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra_net import Address, Identity, InvalidAddress

PEER = Identity.from_seed(bytes(32)).id

hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z]", fullmatch=True),
)
addresses = st.builds(
    Address,
    st.sampled_from(["tcp", "memory", "quic+x"]),
    hosts,
    st.integers(0, 65535),
    st.one_of(st.none(), st.binary(min_size=32, max_size=32).map(lambda seed: Identity.from_seed(seed).id)),
)


@given(addresses)
def test_what_is_written_is_read_back(address):
    assert Address.parse(str(address)) == address
    assert address.with_peer(PEER).peer == PEER
    assert address.with_peer(PEER).without_peer() == address.without_peer()


@given(st.text(max_size=100) | st.from_regex(r"[a-z]{0,4}://[a-z0-9.\[\]:@%]{0,60}", fullmatch=True))
def test_any_text_is_an_address_with_a_stable_form_or_refused(text):
    try:
        address = Address.parse(text)
    except InvalidAddress:
        return
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("tcp://127.0.0.1:4001", "tcp://127.0.0.1:4001"),
        ("tcp://[2001:DB8:0:0::7]:4001", "tcp://[2001:db8::7]:4001"),
        ("tcp://[fe80::1%eth0]:1", "tcp://[fe80::1%eth0]:1"),
        ("tcp://Example.ORG:65535", "tcp://example.org:65535"),
        ("memory://name:1", "memory://name:1"),
        (f"tcp://{PEER}@192.0.2.7:0", f"tcp://{PEER}@192.0.2.7:0"),
    ],
)
def test_normal_forms(text, normal):
    assert str(Address.parse(text)) == normal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:4001",
        "tcp:/127.0.0.1:4001",
        "TCP://127.0.0.1:4001",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:+1",
        "tcp://127.0.0.1:01",
        "tcp://127.0.0.1:١",
        "tcp://127.0.0.1:1/",
        "tcp://127.0.0.1:1 ",
        "tcp://127.1:1",
        "tcp://0177.0.0.1:1",
        "tcp://1.2.3.256:1",
        "tcp://::1:80",
        "tcp://[::1:80",
        "tcp://[127.0.0.1]:80",
        "tcp://[::1%]:80",
        "tcp://[::1%a/b]:80",
        "tcp://a..b:1",
        "tcp://-a:1",
        "tcp://a b:1",
        "tcp://é:1",
        "tcp://peer@127.0.0.1:1",
        f"tcp://{str(PEER).upper()}@127.0.0.1:1",
        f"tcp://{PEER}@{PEER}@127.0.0.1:1",
        "tcp://" + "a" * 300 + ":1",
        "tcp://" + "a" * 10_000_000,
    ],
)
def test_what_is_refused(text):
    with pytest.raises(InvalidAddress) as caught:
        Address.parse(text)
    assert len(str(caught.value)) < 1000
    assert isinstance(caught.value, ValueError)


def test_building_one_by_hand_is_as_strict():
    for arguments in (("TCP", "a", 1), ("tcp", "[::1]", 1), ("tcp", "a", -1), ("tcp", "a", 65536), ("tcp", "", 1)):
        with pytest.raises(InvalidAddress):
            Address(*arguments)
    with pytest.raises(InvalidAddress):
        Address("tcp", "a", 1, bytes(32))
