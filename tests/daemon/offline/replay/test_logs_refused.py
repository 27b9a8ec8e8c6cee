"""Files that are no training log, and the one line said about each."""

import gzip
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caboose_daemon.offline.replay.logs import LogError, read_log

NEEDED = "every row needs its step"
BAD_INPUTS: dict[str, tuple[str | bytes, str]] = {
    # label: (content, what the line says after the file)
    "empty": ("", "empty; try again when the run has logged its first step"),
    "blank": (" \n\n", "nothing but blank lines; try again when the run has logged its first step"),
    "header alone": ("step,loss\n", "no rows yet; try again when the run has logged its first step"),
    "garbage": (
        bytes(range(256)),
        "neither text nor an event file; expected CSV, JSON, JSONL, trainer_state.json, TensorBoard event files, or a"
        " run of W&B, MLflow or Trackio",
    ),
    "no loss": ("step,acc\n1,2\n", "no loss column; found step, acc; name the column loss"),
    "loss misspelt": (
        "step,trian_loss\n1,2\n",
        "no loss column; found step, trian_loss; rename trian_loss to loss if that is it",
    ),
    "no step": ("loss,lr\n1,2\n", "no step column; found loss, lr; name the column step"),
    "epochs alone": (
        "epoch,loss\n1,2\n",
        "no step column; found epoch, loss; an epoch is no step: add a column named step",
    ),
    "no header": (
        "1,2.5\n2,2.4\n",
        "no loss column; found 1, 2.5; the first line must name the columns, such as step,loss",
    ),
    "many columns": (
        ",".join("abcdefghijklmnop") + "\n" + ",".join("1" * 16),
        "no loss column; found a, b, c, d, e, f, g, h, i, j, k, l and 4 more; name the column loss",
    ),
    "text for a loss": (
        "step,loss,lr\n1,2,3\n\n2,tensor(2.4),3\n3,2,3\n",
        "line 4: loss = 'tensor(2.4)': not a number; correct or empty the cell",
    ),
    "text for every loss": ("step,loss,lr\n1,mse,3\n", "line 2: loss = 'mse': not a number; correct or empty the cell"),
    "text for a rate": (
        "step,lr,loss\n1,1,3\n2,high,2\n3,1,2\n",
        "line 3: lr = 'high': not a number; correct or empty the cell",
    ),
    "text for a step": ("step,loss\n1,2\nx,3\n", "line 3: step = 'x': not a number; correct or empty the cell"),
    "loss never logged": ("step,loss\n1,\n", "column 'loss' is empty in every row; nothing to replay"),
    "row without a step": ("step,loss\n1,2\n,3\n", f"line 3: no 'step', though a value is logged; {NEEDED}"),
    "fraction of a step": (
        "step,loss\n0.5,2\n",
        "line 2: step = 0.5: a step is a whole number up to 2**53; correct it",
    ),
    "huge step": ("step,loss\n1e30,2\n", "line 2: step = 1e+30: a step is a whole number up to 2**53; correct it"),
    "step that is no number": (
        "step,loss\n1,2\nnan,2\n",
        "line 3: step = nan: a step is a whole number up to 2**53; correct it",
    ),
    "short line in the middle": (
        "step,loss\n1,2\n2\n3,4\n",
        "line 3: 1 cells where the header names 2; correct the line",
    ),
    "long line": ("step,loss\n1,2,3\n2,3\n", "line 2: 3 cells where the header names 2; correct the line"),
    "quote left open": (
        'step,loss\n1,2\n2,"3\n3,4\n4,5\n',
        "line 3: a quote is opened and not closed on this line; correct the line",
    ),
    "loss twice": ("step,loss,loss\n1,2,3\n", "line 1: two columns are named 'loss'; rename one of them"),
    "several runs": (
        "Step,a - loss,b - loss\n1,2,3\n",
        "holds several runs (a, b); export one run at a time",
    ),
    "half a document": (
        '{"log_history": [{"step": 1, ',
        "not whole JSON (Expecting property name enclosed in double quotes: line 1 column 30 (char 29)); "
        "if the file is still being written, try again",
    ),
    "broken line": (
        '{"step": 1, "loss": 2}\n{"step": 2, \n{"step": 3, "loss": 2}\n',
        "line 2: not JSON (Expecting property name enclosed in double quotes: line 1 column 13 (char 12)); "
        "correct or remove the line",
    ),
    "line that is a number": (
        '{"step": 1, "loss": 2}\n5\n{"step": 2, "loss": 2}',
        "line 2: not an object; every line must be one, with a step",
    ),
    "text for a loss in a line": (
        '{"step": 1, "loss": 2}\n\n{"step": 2, "loss": "?"}\n',
        "line 3: loss = '?': not a number; correct or empty the cell",
    ),
    "row that is a number": ("[{}, 5]", "row 2: not an object; every row must be one, with a step"),
    "row of the Trainer without a step": (
        '{"log_history": [{"step": 1, "loss": 1}, {"loss": 2}]}',
        f"log_history row 2: no 'step', though a value is logged; {NEEDED}",
    ),
    "columns of two lengths": (
        '{"step": [1, 2], "loss": [1]}',
        "column 'loss' has 1 values, others 2; fill its gaps with null",
    ),
    "no rows": ("[]", "no rows yet; try again when the run has logged its first step"),
    "empty rows": ("[{}]", "no columns; a log needs a step and a loss in every row"),
    "nested too deeply": (
        "[" * 100_000,
        "not whole JSON (nested too deeply); if the file is still being written, try again",
    ),
    "gzip cut short": (
        gzip.compress(os.urandom(200_000).hex().encode())[:-100],
        "damaged or unfinished gzip (Compressed file ended before the end-of-stream marker was reached); "
        "unpack what is there with gzip -dc",
    ),
}


@pytest.mark.parametrize(("content", "said"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_a_file_that_is_no_log_gets_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    file = tmp_path / "run"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(LogError) as refused:
        read_log(file)

    assert str(refused.value) == f"{file}: {said}"


def test_what_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "log.txt").touch()
    for name, said in {
        "nothing": "No such file or directory",
        "pipe": "not a regular file; save the log to a file first",
        "directory": "a directory without event files, trainer_state.json or metrics.csv; name the log itself",
        "two\nlines": "No such file or directory",
        "\0": "no file can have this name",
    }.items():
        with pytest.raises(LogError) as refused:
            read_log(tmp_path / name)
        assert str(refused.value) == f"{tmp_path / name}: {said}".replace("\n", " ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.touch(mode=0o000)

    with pytest.raises(LogError, match=r"Permission denied$"):
        read_log(file)


def an_event_file(tail: bytes) -> bytes:
    version = b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    return struct.pack("<QI", len(version), 0) + version + bytes(4) + tail


CELLS = st.text(st.sampled_from("0123456789.-+einfa_ \"',\r\n\t#;\ufeffx"), max_size=8)
ANY_FILE = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(gzip.compress),
    st.binary(max_size=100).map(lambda tail: gzip.compress(b"step,loss\n1,2\n")[:-3] + tail),
    st.binary(max_size=200).map(an_event_file),
    st.text(max_size=200).map(lambda text: text.encode(errors="replace")),
    st.lists(st.lists(CELLS, min_size=1, max_size=4).map(",".join), max_size=8).map(
        lambda lines: ("step,loss,lr\n" + "\n".join(lines)).encode()
    ),
    st.text(st.sampled_from('{}[]:,"steploss0123456789.eNaInfity-\n null'), max_size=120).map(
        lambda text: b'{"step": 1, "loss": 2}\n' + text.encode()
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["step", "loss", "rows", "log_history", "lr", "x", "split"]), inner, max_size=4
            )
        ),
        max_leaves=20,
    ).map(lambda found: json.dumps(found).encode()),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ANY_FILE, name=st.sampled_from(["run", "run.csv", "events.out.tfevents.1", "run.json"]))
def test_arbitrary_bytes_are_a_log_or_one_line(tmp_path: Path, content: bytes, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    try:
        log = read_log(file)
    except LogError as error:
        said = str(error)
    else:
        said = f"{log.file}: read"
        assert "loss" in log.columns
        assert {len(column.values) for column in log.columns.values()} == {len(log.steps)}
        assert {len(column.is_logged) for column in log.columns.values()} == {len(log.steps)}
    assert said.startswith(f"{file}: ")
    assert len(said.splitlines()) == 1
