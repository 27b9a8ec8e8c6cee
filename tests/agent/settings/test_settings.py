"""What the environment sets, and what it must not."""

import pytest
import zmq

from caboose.settings import environment
from caboose.settings.options import Sampling

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())


def test_the_default_is_a_daemon_on_this_machine() -> None:
    chosen = environment.resolve({})
    assert chosen.endpoint == "tcp://127.0.0.1:5757"
    assert chosen.curve is None


def test_an_argument_goes_before_the_environment() -> None:
    env = {"CABOOSE_ENDPOINT": "tcp://127.0.0.1:1", "CABOOSE_SAMPLE_EVERY": "7"}
    chosen = environment.resolve(env, endpoint="tcp://127.0.0.1:2", sampling=Sampling(9))
    assert (chosen.endpoint, chosen.sample_every) == ("tcp://127.0.0.1:2", 9)
    assert environment.resolve(env).sample_every == 7
    env = {"CABOOSE_SAMPLE_COMPILED": "1"}
    assert environment.resolve(env).samples_compiled
    assert not environment.resolve(env, sampling=Sampling(compiled=False)).samples_compiled
    assert not environment.resolve({}).samples_compiled


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CABOOSE_ENDPOINT": "127.0.0.1:5757"}, "CABOOSE_ENDPOINT.*tcp://host:port"),
        ({"CABOOSE_ENDPOINT": "tcp://127.0.0.1:99999"}, "the maximum is 65535"),
        ({"CABOOSE_ENDPOINT": "tcp://127.0.0.1:0"}, "has no port"),
        ({"CABOOSE_ENDPOINT": "tcp://daemon.example:5757"}, "no keys are set.*caboose keys new"),
        ({"CABOOSE_SERVER_KEY": PUBLIC}, "CABOOSE_AGENT_KEY is not set"),
        ({"CABOOSE_AGENT_KEY": SECRET}, "CABOOSE_SERVER_KEY is not set"),
        ({"CABOOSE_SERVER_KEY": "short", "CABOOSE_AGENT_KEY": SECRET}, "CABOOSE_SERVER_KEY has 5 characters"),
        ({"CABOOSE_SAMPLE_EVERY": "0"}, "CABOOSE_SAMPLE_EVERY='0'"),
        ({"CABOOSE_SAMPLE_EVERY": "often"}, "CABOOSE_SAMPLE_EVERY='often'"),
        ({"CABOOSE_SAMPLE_COMPILED": "maybe"}, "CABOOSE_SAMPLE_COMPILED='maybe'"),
        ({"CABOOSE_INSECURE": "maybe", "CABOOSE_ENDPOINT": "tcp://daemon.example:5757"}, "CABOOSE_INSECURE='maybe'"),
    ],
)
def test_a_setting_that_cannot_be_right_names_the_way_out(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environment.resolve(env)


def test_another_machine_may_be_reported_to_with_keys_or_on_a_trusted_network() -> None:
    far = {"CABOOSE_ENDPOINT": "tcp://daemon.example:5757"}
    keys = {"CABOOSE_SERVER_KEY": PUBLIC, "CABOOSE_AGENT_KEY": SECRET}
    assert environment.resolve({**far, **keys}).curve is not None
    assert environment.resolve({**far, "CABOOSE_INSECURE": "1"}).curve is None
