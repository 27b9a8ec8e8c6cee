"""Addresses that people type, and who could reach them."""

import pytest

from caboose_wire.endpoints import DEFAULT_ENDPOINT, DEFAULT_HTTP, is_loopback, split_http, split_tcp


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://127.0.0.1:5757", ("127.0.0.1", 5757)),
        ("tcp://localhost:0", ("localhost", 0)),
        ("tcp://node-1.cluster:65535", ("node-1.cluster", 65_535)),
        ("tcp://*:5757", ("*", 5757)),
        ("tcp://127.0.0.1:*", ("127.0.0.1", 0)),
        ("tcp://[::1]:5757", ("[::1]", 5757)),
    ],
)
def test_an_endpoint_has_a_host_and_a_port(endpoint: str, expected: tuple[str, int]) -> None:
    assert split_tcp(endpoint) == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:5757",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://:5757",
        "tcp://127.0.0.1:port",
        "tcp://127.0.0.1:-1",
        "tcp://::1:5757",
        "tcp://a b/c:1",
        "ipc:///tmp/socket",
        "http://127.0.0.1:5757",
        "tcp://127.0.0.1:5757\n",
        "tcp://127.0.0.1:5757/",
    ],
)
def test_anything_else_is_named_in_the_error(endpoint: str) -> None:
    with pytest.raises(ValueError, match="tcp://host:port") as caught:
        split_tcp(endpoint)

    assert repr(endpoint) in str(caught.value)


def test_ports_end_at_65535() -> None:
    with pytest.raises(ValueError, match="port 65536; the maximum is 65535"):
        split_tcp("tcp://127.0.0.1:65536")
    with pytest.raises(ValueError, match="port 99999; the maximum is 65535"):
        split_http("127.0.0.1:99999")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9757", ("127.0.0.1", 9757)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9757", ("::1", 9757)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_an_http_address_has_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_http(address) == expected


@pytest.mark.parametrize("address", ["", "9757", ":9757", "127.0.0.1", "http://127.0.0.1:9757", "::1:9757"])
def test_any_other_http_address_is_named_in_the_error(address: str) -> None:
    with pytest.raises(ValueError, match="host:port") as caught:
        split_http(address)

    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "", "::", "[::]", "10.0.0.1", "node1", "localhost.example.com"])
def test_everything_else_can_be_reached_or_might_be(host: str) -> None:
    assert not is_loopback(host)


def test_the_defaults_are_loopback() -> None:
    assert is_loopback(split_tcp(DEFAULT_ENDPOINT)[0])
    assert is_loopback(split_http(DEFAULT_HTTP)[0])
