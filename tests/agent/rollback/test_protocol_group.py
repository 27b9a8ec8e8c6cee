"""How the ranks meet: one broadcast tells where the register is, or why there is none."""

import socket

import pytest

from caboose.rollback.group import open_group
from caboose.rollback.register import Register, Seal

pytestmark = pytest.mark.timeout(30)


def test_every_connection_leads_to_the_same_register(process_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    group = open_group(0, 2)
    first, second = (
        Register(group.open_store(), group=group.nonce, key=group.key, rank=rank, world=2) for rank in range(2)
    )
    first.seal(1, Seal(True))

    assert second.decision(1) == Seal(True)
    assert len(group.nonce) == 32
    assert len(group.key) == 32


def test_every_attach_has_a_name_and_a_key_of_its_own(process_group: None) -> None:
    groups = [open_group(0, 2), open_group(0, 2), open_group(0, 1)]

    assert len({group.nonce for group in groups}) == 3
    assert len({group.key for group in groups}) == 3


@pytest.mark.parametrize("address", ["127.0.0.1", "", "192.0.2.77", "no-such-host.invalid"])
def test_the_register_is_found_wherever_the_ranks_met(
    process_group: None, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """At the address they met at if it is rank 0's own, else at one that is."""
    monkeypatch.setenv("MASTER_ADDR", address)

    assert open_group(0, 2).open_store().compare_set("a", "", "b") == b"b"


def test_the_key_is_not_shown(process_group: None) -> None:
    assert "key" not in repr(open_group(0, 2))


def test_without_a_process_group_many_ranks_cannot_meet() -> None:
    with pytest.raises(ValueError, match=r"with 2 ranks needs torch.distributed.init_process_group\(\) before attach"):
        open_group(0, 2)


def test_all_ranks_learn_that_rank_0_could_open_no_port(process_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(socket, "create_server", fail)

    with pytest.raises(ValueError, match="needs a port on the host of rank 0: too many open files"):
        open_group(0, 2)
