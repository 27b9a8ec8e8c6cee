"""caboose.toml: what it may hold, and the one line said about anything else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from caboose_daemon.app.app import Daemon
from caboose_daemon.config import SECTIONS, Config, ConfigError, DaemonConfig, MetricsConfig, load
from caboose_daemon.rules.loss_spike import LossSpikeConfig
from caboose_daemon.rules.rank_silent import RankSilentConfig

BAD_INPUTS = {
    # label: (toml, what the line says after the file)
    "unknown section": ("[deamon]\nlisten = 'x'", "deamon: unknown key; did you mean daemon?"),
    "unknown key at the top": (
        "zzz = 'x'",
        "zzz = 'x': unknown key; "
        "valid here: alignment, daemon, export, fleet, grafana, journal, metrics, otlp, rollback, rules, store",
    ),
    "misspelt key": ("[daemon]\nlistn = 'x'", "daemon.listn = 'x': unknown key; did you mean daemon.listen?"),
    "misspelt key of a number": (
        "[journal]\nmax_step = 5",
        "journal.max_step = 5: unknown key; did you mean journal.max_steps?",
    ),
    "key that resembles nothing": (
        "[journal]\nzzz = true",
        "journal.zzz = True: unknown key; valid here: max_steps, retention_days, strict",
    ),
    "unknown rule": (
        "[rules.loss_spikes]\nratio = 2",
        "rules.loss_spikes: unknown key; did you mean rules.loss_spike?",
    ),
    "unknown threshold": (
        "[rules.loss_spike]\nratios = 2",
        "rules.loss_spike.ratios = 2: unknown key; did you mean rules.loss_spike.ratio?",
    ),
    "section that is a value": ("daemon = 3", "daemon = 3: expected a section [daemon]"),
    "rules that are a value": ("rules = [1]", "rules = [1]: expected a section [rules.<name>] for each rule"),
    "rule that is a value": (
        "[rules]\nloss_spike = false",
        "rules.loss_spike = False: expected a section [rules.loss_spike]",
    ),
    "certificate without its key": (
        "[daemon]\ntls_cert = 'cert.pem'",
        "daemon.tls_cert = 'cert.pem': needs tls_key as well",
    ),
    "key without its certificate": (
        "[daemon]\ntls_key = 'key.pem'",
        "daemon.tls_key = 'key.pem': needs tls_cert as well",
    ),
    "number for a text": ("[daemon]\nlisten = 5757", "daemon.listen = 5757: expected a string, got a whole number"),
    "text for a number": (
        "[journal]\nmax_steps = '5'",
        "journal.max_steps = '5': expected a whole number, got a string",
    ),
    "fraction for a whole number": (
        "[journal]\nmax_steps = 5.5",
        "journal.max_steps = 5.5: expected a whole number, got a number",
    ),
    "truth for a number": (
        "[journal]\nretention_days = true",
        "journal.retention_days = True: expected a number, got true or false",
    ),
    "number for truth": (
        "[rules.non_finite]\nenabled = 1",
        "rules.non_finite.enabled = 1: expected true or false, got a whole number",
    ),
    "text for a list": (
        "[daemon]\nallowed_hosts = 'a'",
        "daemon.allowed_hosts = 'a': expected a list of strings",
    ),
    "list of numbers for a list of texts": (
        "[daemon]\nallowed_hosts = [1]",
        "daemon.allowed_hosts = [1]: expected a list of strings",
    ),
    "date for a number": (
        "[journal]\nretention_days = 2024-01-01",
        "journal.retention_days = datetime.date(2024, 1, 1): expected a number, got something else",
    ),
    "severity that does not exist": (
        "[rules.loss_spike]\nseverity = 'fatal'",
        "rules.loss_spike.severity = 'fatal': use one of 'info', 'warning', 'critical'",
    ),
    "zero": ("[journal]\nmax_steps = 0", "journal.max_steps = 0: must be above 0"),
    "negative": ("[alignment]\ndeadline_steps = -1", "alignment.deadline_steps = -1.0: must be above 0"),
    "not a number": (
        "[alignment]\nmin_deadline_seconds = nan",
        "alignment.min_deadline_seconds = nan: must be above 0",
    ),
    "threshold of zero": (
        "[rules.rank_silent]\nwarn_seconds = 0",
        "rules.rank_silent.warn_seconds = 0.0: must be above 0",
    ),
    "endpoint without a port": (
        "[daemon]\nlisten = 'tcp://localhost'",
        "daemon.listen = 'tcp://localhost': 'tcp://localhost' is not of the form tcp://host:port",
    ),
    "address without a port": (
        "[daemon]\nhttp = 'localhost'",
        "daemon.http = 'localhost': 'localhost' is not of the form host:port",
    ),
    "port beyond the last": (
        "[daemon]\nhttp = 'localhost:70000'",
        "daemon.http = 'localhost:70000': 'localhost:70000' has port 70000; the maximum is 65535",
    ),
    "Grafana without http": (
        "[grafana]\nurl = 'grafana:3000'",
        "grafana.url = 'grafana:3000': expected http://host:port/path",
    ),
    "mode that does not exist": (
        "[export]\nwandb_mode = 'disabled'",
        "export.wandb_mode = 'disabled': use one of 'offline', 'online'",
    ),
    "no step at all": ("[export]\nevery_steps = 0", "export.every_steps = 0: must be above 0"),
    "time that runs backwards": (
        "[export]\nhistogram_seconds = -1",
        "export.histogram_seconds = -1.0: must not be below 0",
    ),
    "mirror in a bucket": (
        "[export]\ntensorboard_dir = 's3://bucket/logs'",
        "export.tensorboard_dir = 's3://bucket/logs': must be a directory on this machine",
    ),
    "rollback that does not exist": (
        "[rollback]\nmode = 'yes'",
        "rollback.mode = 'yes': use one of 'off', 'advise', 'auto'",
    ),
    "learning rate that does not fall": (
        "[rollback]\nlr_scale = 2",
        "rollback.lr_scale = 2.0: must be above 0 and at most 1",
    ),
    "caution that is none": ("[rollback]\ncaution = 0.5", "rollback.caution = 0.5: must not be below 1"),
    "negative budget": ("[rollback]\nbudget = -1", "rollback.budget = -1: must not be below 0"),
    "no horizon": ("[rollback]\nhorizon_steps = 0", "rollback.horizon_steps = 0: must be above 0"),
    "value with a line break": (
        '[daemon]\nlisten = "a\\nb"',
        r"daemon.listen = 'a\nb': 'a\nb' is not of the form tcp://host:port",
    ),
    "not TOML": ("[daemon\n", "not valid TOML: "),
    "key given twice": ("[daemon]\nhttp = 'a:1'\nhttp = 'a:2'", "not valid TOML: "),
}


@pytest.mark.parametrize(("text", "line"), BAD_INPUTS.values(), ids=list(BAD_INPUTS))
def test_bad_input_gives_one_line_with_file_key_value_and_what_to_do(text: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load(file)

    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{file}: {line}") if line.endswith(": ") else message == f"{file}: {line}"


def test_bytes_that_are_no_text_give_one_line(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_bytes(b"[daemon]\nlisten = '\xff\xfe'")

    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file)


# The real command line


def test_the_command_line_says_the_line_and_exits_with_2(refused_start: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "caboose.toml").write_text("[journal]\nmax_step = 5")

    line = refused_start()

    assert line == "caboose.toml: journal.max_step = 5: unknown key; did you mean journal.max_steps?"


def test_a_file_that_is_not_there_is_one_line(refused_start: Callable[..., str]) -> None:
    assert refused_start("--config", "nowhere.toml") == "nowhere.toml: No such file or directory"


def test_a_wrong_flag_is_blamed_on_the_command_line_and_not_on_the_file(
    refused_start: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "caboose.toml").write_text("[journal]\nmax_steps = 5")

    line = refused_start("--listen", "5757")

    assert line == "command line: daemon.listen = '5757': '5757' is not of the form tcp://host:port"


# Good input


def test_without_a_file_everything_has_its_default() -> None:
    assert load(None) == Config()


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text("")

    assert load(file) == Config()


def test_values_are_taken_and_the_rest_keeps_its_default(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(
        "[daemon]\nhttp = '127.0.0.1:1'\nallowed_hosts = ['a', 'b']\n"
        "[journal]\nretention_days = 7\n"
        "[rules.loss_spike]\nratio = 2\nenabled = false\nseverity = 'warning'\n"
    )

    config = load(file)

    assert (config.daemon.http, config.daemon.allowed_hosts) == ("127.0.0.1:1", ("a", "b"))
    assert config.journal.retention_days == 7.0
    assert config.rules["loss_spike"] == LossSpikeConfig(ratio=2.0, enabled=False, severity="warning")
    assert config.rules["rank_silent"] == RankSilentConfig()


def test_a_flag_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text("[daemon]\nhttp = '127.0.0.1:1'\nlisten = 'tcp://127.0.0.1:2'")

    config = load(file, {"http": "127.0.0.1:3"})

    assert (config.daemon.http, config.daemon.listen) == ("127.0.0.1:3", "tcp://127.0.0.1:2")


def test_what_is_given_for_rollback_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text("[rollback]\nmode = 'auto'\nbudget = 1")

    assert load(None).rollback.mode == "advise"
    assert (load(file).rollback.mode, load(file).rollback.budget) == ("auto", 1)
    given = load(file, {}, {"mode": "off"}).rollback
    assert (given.mode, given.budget) == ("off", 1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.long
def test_a_mode_or_a_secret_that_cannot_be_is_one_line(refused_start: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc")

    wrong = refused_start("--rollback", "off", CABOOSE_ROLLBACK="fast", CABOOSE_SECRET_FILE="short")
    assert wrong.startswith("CABOOSE_SECRET_FILE='short' has 3 bytes; use 16 to 4096"), "the flag wins"
    line = refused_start(CABOOSE_ROLLBACK="fast")
    assert line == "command line: rollback.mode = 'fast': use one of 'off', 'advise', 'auto'"


def test_the_names_people_set_are_frozen() -> None:
    """Renaming one of these breaks someone's caboose.toml: it needs a line in the change log."""
    config = Config()
    names = {
        **{section: sorted(vars(getattr(config, section))) for section in SECTIONS},
        **{f"rules.{name}": sorted(vars(rule)) for name, rule in config.rules.items()},
    }

    golden = Path(__file__).parent.parent / "golden" / "config.json"
    assert names == json.loads(golden.read_text(encoding="utf-8")), (
        "if this is meant, write it there, and the change log"
    )


@pytest.mark.parametrize(("seconds", "num_told"), [(119.0, 1), (120.0, 0)])
def test_incidents_that_are_gone_before_they_are_scraped_are_warned_of_at_the_start(
    seconds: float, num_told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(daemon=DaemonConfig(data_dir=str(tmp_path)), metrics=MetricsConfig(incident_seconds=seconds))

    Daemon(config).close()

    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == num_told
    assert all(line.startswith("incident_seconds = 119 under [metrics]: ") for line in told)
