"""What a node believes about where peers are."""

import pytest

from hydra_net import Address, Identity
from hydra_net.book import AddressBook, dialable, host_of

ALICE, BOB, CAROL = (Identity.from_seed(bytes([number] * 32)).id for number in (1, 2, 3))


def at(*ports):
    return [Address("tcp", "192.0.2.1", port) for port in ports]


def ports(book, peer):
    return [address.port for address in book.of(peer)]


def test_addresses_carry_their_peer():
    book = AddressBook(peers=10, per_peer=8)
    book.learn(ALICE, [Address("tcp", "192.0.2.1", 1, BOB)])
    assert book.of(ALICE) == (Address("tcp", "192.0.2.1", 1, ALICE),)
    assert book.of(BOB) == ()


def test_the_best_is_tried_first_and_the_oldest_of_the_others_go():
    book = AddressBook(peers=10, per_peer=4)
    book.learn(ALICE, at(1, 2))
    book.learn(ALICE, at(3), best=True)
    assert ports(book, ALICE) == [3, 1, 2]
    book.learn(ALICE, at(4, 5))
    assert ports(book, ALICE) == [3, 2, 4, 5]
    book.learn(ALICE, at(5), best=True)
    assert ports(book, ALICE) == [5, 3, 2, 4]
    book.learn(ALICE, at(*range(10, 30)))
    assert ports(book, ALICE) == [5, 27, 28, 29]
    book.learn(ALICE, [])
    assert ports(book, ALICE) == [5, 27, 28, 29]


@pytest.mark.parametrize("per_peer", [1, 2])
@pytest.mark.parametrize("best", [True, False])
def test_small_books_keep_their_bound(per_peer, best):
    book = AddressBook(peers=10, per_peer=per_peer)
    for port in range(1, 20):
        book.learn(ALICE, at(port), best=best)
        assert len(book.of(ALICE)) <= per_peer
    assert book.of(ALICE)


def test_the_peer_heard_of_the_longest_ago_is_forgotten_first():
    book = AddressBook(peers=2, per_peer=8)
    book.learn(ALICE, at(1))
    book.learn(BOB, at(2))
    book.learn(ALICE, at(3))
    book.learn(CAROL, at(4))
    assert ports(book, ALICE) == [1, 3]
    assert book.of(BOB) == ()


def test_an_address_can_be_forgotten():
    book = AddressBook(peers=2, per_peer=8)
    book.learn(ALICE, at(1, 2))
    book.forget(ALICE, at(1)[0])
    book.forget(ALICE, at(9)[0])
    book.forget(BOB, at(1)[0])
    assert ports(book, ALICE) == [2]


@pytest.mark.parametrize(
    ("listening", "observed", "expected"),
    [
        ("0.0.0.0", "198.51.100.7", "198.51.100.7"),
        ("::", "2001:db8::7", "2001:db8::7"),
        ("::", "198.51.100.7", None),
        ("0.0.0.0", None, None),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "8.8.8.8", None),
        ("127.0.0.1", "10.0.0.1", None),
        ("127.0.0.1", None, None),
        ("::1", "8.8.8.8", None),
        ("::ffff:127.0.0.1", "8.8.8.8", None),
        ("10.1.2.3", "10.0.0.1", "10.1.2.3"),
        ("10.1.2.3", "127.0.0.1", "10.1.2.3"),
        ("10.1.2.3", "8.8.8.8", None),
        ("169.254.169.254", "8.8.8.8", None),
        ("169.254.169.254", "10.0.0.1", None),
        ("224.0.0.1", "8.8.8.8", None),
        ("8.8.4.4", "8.8.8.8", "8.8.4.4"),
        ("8.8.4.4", "10.0.0.1", "8.8.4.4"),
        ("localhost", "8.8.8.8", None),
        ("name", None, "name"),
    ],
)
def test_nobody_sends_us_where_only_we_can_go(listening, observed, expected):
    """Attack 26 (SSRF through peer addresses)."""
    found = [address.host for address in dialable([Address("tcp", listening, 4001)], observed)]
    assert found == ([] if expected is None else [expected])


def test_port_zero_is_nowhere():
    assert dialable([Address("tcp", "8.8.8.8", 0)], "8.8.8.8") == []


@pytest.mark.parametrize(
    ("remote", "host"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        (("memory-host", 5), None),
        ("/path", None),
        ((), None),
        (None, None),
    ],
)
def test_where_a_connection_came_from(remote, host):
    assert host_of(remote) == host
