"""`caboose config`: what a daemon would start with and why, what is wrong with a file, and the whole reference."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from caboose_daemon.cli import caboose
from caboose_daemon.config import Config, load


def run(*arguments: str, **variables: str) -> tuple[int, str]:
    done = CliRunner(env={"CABOOSE_CONFIG": None, **variables}).invoke(caboose, ["config", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "caboose.toml"
    path.write_text(
        '[daemon]\nhttp = "127.0.0.1:1234"\n[journal]\nretention_days = 90\n[rules.loss_spike]\nscales = 9.0\n'
    )
    return path


def test_what_differs_from_the_defaults_is_shown_with_its_origin(file: Path) -> None:
    code, output = run("show", "--changed", "--config", str(file), CABOOSE_LISTEN="tcp://[::1]:9", CABOOSE_LINGER="5")

    assert code == 0
    assert output == (
        f'[daemon]\nlisten = "tcp://[::1]:9"  # variable\nhttp = "127.0.0.1:1234"  # file {file}\n'
        f"linger_seconds = 5.0  # variable\n\n[rules.loss_spike]\nscales = 9.0  # file {file}\n"
    )


def test_what_is_shown_is_a_file_that_gives_the_same_configuration(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    for flags in ((), ("--changed",)):
        code, output = run("show", "--config", str(file), *flags)
        copy.write_text(output)
        assert code == 0
        assert load(copy) == load(file)


def test_json_has_every_value_and_its_origin(file: Path) -> None:
    code, output = run("show", "--config", str(file), "--json", CABOOSE_ROLLBACK="off")
    answer = json.loads(output)
    found = {(row["section"], row["key"]): row for row in answer["values"]}

    assert (code, answer["file"]) == (0, str(file))
    assert found["rollback", "mode"] == {"section": "rollback", "key": "mode", "value": "off", "from": "variable"}
    assert found["rules.loss_spike", "scales"]["from"] == "file"
    assert found["daemon", "data_dir"]["from"] == "default"


def test_a_valid_file_is_told_and_how_much_it_changes(file: Path) -> None:
    assert run("check", str(file)) == (0, f"{file}: valid; 2 of {count()} values are not the default\n")
    assert run("check", CABOOSE_CONFIG=str(file))[0] == 0


def count() -> int:
    config = Config()
    sections = [getattr(config, name) for name in vars(config) if name not in ("rules", "rule_tables", "file")]
    return sum(len(vars(section)) for section in (*sections, *config.rules.values()))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[daemon]\nlistn = 'x'", "daemon.listn = 'x': unknown key; did you mean daemon.listen?"),
        ("[rules.loss_spike]\nscales = 'x'", "rules.loss_spike.scales = 'x': expected a number"),
        ("[daemon", "not valid TOML"),
        ("[daemon]\nkeys = '/nonexistent'", "daemon.keys = '/nonexistent': no such directory"),
        ("[otlp]\nheaders_file = '/nonexistent'", "otlp.headers_file = '/nonexistent': no such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_and_exit_code_1(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "caboose.toml"
    file.write_text(text)

    code, output = run("check", str(file))

    assert code == 1
    assert why in output
    assert output.count("\n") == 1


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert run("check", "nowhere.toml") == (2, "caboose: nowhere.toml: no such file\n")
    assert run("check")[0] == 2


def test_the_reference_is_the_example_and_changes_nothing(tmp_path: Path) -> None:
    code, output = run("reference")
    file = tmp_path / "caboose.toml"
    file.write_text(output)

    assert code == 0
    assert output == (Path(__file__).parents[3] / "deploy" / "caboose.example.toml").read_text()
    assert load(file) == Config()
    assert run("check", str(file)) == (0, f"{file}: valid; 0 of {count()} values are not the default\n")
