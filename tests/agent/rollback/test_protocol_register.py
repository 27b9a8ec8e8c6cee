"""The register on every kind of store: what is written once stays, and what no rank wrote counts for nothing."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

from caboose.rollback.group import connect, serve
from caboose.rollback.register import NUM_ACKS_KEPT, RegisterEntry, Seal, Store
from support.commands import GROUP, a_command, a_register

COMMIT = Seal(True)
ABORT = Seal(False, "rank 1: no")


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "hash":
        yield HashStore()
    elif request.param == "file":
        yield FileStore(str(tmp_path / "store"), 1)
    else:
        server = serve("127.0.0.1")
        yield connect("127.0.0.1", server.port)


def test_the_first_command_under_a_number_is_the_one_that_all_find(store: Store) -> None:
    first, second = a_command(reason="a spike"), a_command(reason="another")

    assert a_register(store, rank=0).find(1) is None
    assert a_register(store, rank=0).publish(first) == RegisterEntry(first)
    assert a_register(store, rank=1).publish(second) == RegisterEntry(first)
    assert a_register(store, rank=2).find(1) == RegisterEntry(first)


def test_a_gap_is_closed_unless_a_command_is_there(store: Store) -> None:
    register = a_register(store)
    register.publish(a_command(number=2))

    assert register.close_gap(1) == RegisterEntry(None)
    assert register.publish(a_command(number=1)) == RegisterEntry(None)
    assert register.close_gap(2).command is not None


def test_the_first_decision_holds(store: Store) -> None:
    register, other = a_register(store, rank=0, world=2), a_register(store, rank=1, world=2)

    assert register.decision(1) is None
    assert other.seal(1, ABORT) == ABORT
    assert register.seal(1, COMMIT) == ABORT
    assert register.decision(1) == ABORT
    assert register.seal(2, COMMIT) == COMMIT
    assert other.seal(2, ABORT) == COMMIT


def test_a_reason_that_is_no_proper_text_is_written_all_the_same(store: Store) -> None:
    assert a_register(store).seal(1, Seal(False, "no \ud800 " + 1000 * "x")).reason.startswith("no ? xxx")


def test_a_command_is_complete_when_every_rank_has_said_so_itself(store: Store) -> None:
    ranks = [a_register(store, rank=rank, world=3) for rank in range(3)]
    ranks[0].acknowledge(1)
    ranks[2].acknowledge(1)
    ranks[2].acknowledge(1)  # it was not sure whether it was heard

    assert ranks[0].num_acks(1) == 3
    assert not ranks[0].is_complete(1)
    ranks[1].acknowledge(1)
    assert ranks[0].is_complete(1)


def test_what_was_acknowledged_long_ago_is_forgotten(store: Store) -> None:
    register = a_register(store)
    for number in range(1, 3 * NUM_ACKS_KEPT):
        register.acknowledge(number)

    present = [n for n in range(1, 3 * NUM_ACKS_KEPT) if store.check([f"rb/{GROUP}/{n}/ack/0"])]
    assert len(present) == NUM_ACKS_KEPT


FORGERIES: dict[str, Callable[[Store, str], None]] = {
    "garbage": lambda store, key: store.compare_set(key, "", "\x00garbage"),
    "no MAC": lambda store, key: store.compare_set(key, "", "C"),
    "another key": lambda store, key: a_register(store, key=b"x" * 32).seal(1, COMMIT),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_decision_is_never_a_commit(store: Store, forge: Callable[[Store, str], None]) -> None:
    forge(store, f"rb/{GROUP}/1/d")

    found = a_register(store).decision(1)
    assert found is not None
    assert not found.is_commit
    assert "not from a rank of this group" in found.reason
    assert a_register(store).seal(1, COMMIT) == found


def test_a_commit_copied_from_another_command_is_no_commit(store: Store) -> None:
    register = a_register(store)
    register.seal(1, COMMIT)
    store.compare_set(f"rb/{GROUP}/2/d", "", store.get(f"rb/{GROUP}/1/d").decode())

    found = register.decision(2)
    assert found is not None
    assert not found.is_commit


def test_a_forged_command_is_no_command(store: Store) -> None:
    a_register(store, key=b"x" * 32).publish(a_command())

    entry = a_register(store).find(1)
    assert entry is not None
    assert entry.command is None
    assert "not from a rank of this group" in entry.flaw


def test_a_forged_acknowledgement_does_not_count(store: Store) -> None:
    honest = a_register(store, rank=0, world=2)
    honest.acknowledge(1)
    a_register(store, rank=1, world=2, key=b"x" * 32).acknowledge(1)

    assert honest.num_acks(1) == 2
    assert not honest.is_complete(1)


def test_a_store_on_loopback_is_reached_from_there_alone() -> None:
    server = serve("127.0.0.1")
    client = connect("127.0.0.1", server.port)
    client.compare_set("a", "", "b")

    with pytest.raises(OSError, match="refused"):
        connect("127.0.0.2", server.port)


def test_a_server_that_is_gone_is_told_from_one_that_is_slow() -> None:
    server = serve("127.0.0.1")
    port = server.port
    del server

    with pytest.raises(ConnectionRefusedError):
        connect("127.0.0.1", port)


def test_a_store_of_the_kind_the_process_group_uses_serves_as_well() -> None:
    """Nothing here depends on how the server was opened."""
    server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    register = a_register(connect("127.0.0.1", server.port))

    assert register.seal(1, COMMIT) == COMMIT
