"""Files that are larger than any log: one line of error, and little memory."""

import gzip
import resource
import subprocess
from pathlib import Path

import pytest

from caboose_daemon.offline.replay.logs import LogError, read_log
from caboose_daemon.offline.replay.logs.content import MAX_DOCUMENT_BYTES, MAX_JSON_BYTES, MAX_LINE_BYTES
from support.processes import caboose_command, clean_environment

MEMORY = 2 * 1024**3


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"step,loss\n" + b"1" * (MAX_LINE_BYTES + 10**6))

    with pytest.raises(LogError, match=r"log\.csv: a line of more than 16 MiB"):
        read_log(path)


def test_many_lines_are_no_long_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"{step},{1.0 / step},{'x' * 1000}\n" for step in range(1, 20_000))
    path.write_text(f"step,loss,note\n{rows}")
    assert path.stat().st_size > MAX_LINE_BYTES

    assert len(read_log(path).steps) == 19_999


def test_a_document_that_would_take_gigabytes_is_refused_and_the_same_in_lines_is_read(tmp_path: Path) -> None:
    document, lines = tmp_path / "log.json", tmp_path / "log.jsonl"
    row = '{"step": %d, "loss": 2.0, "note": "' + "x" * 100_000 + '"}'
    rows = [row % step for step in range(1, MAX_DOCUMENT_BYTES // 100_000 + 2)]
    document.write_text("[" + ",".join(rows) + "]")
    lines.write_text("\n".join(rows))

    with pytest.raises(LogError, match=r"more than 64 MiB in one JSON document; write one object a line"):
        read_log(document)
    assert len(read_log(lines).steps) == len(rows)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["line.csv", "document.json", "lines.jsonl"])
def test_a_gigabyte_in_a_small_gzip_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    starts = {"line.csv": b"step,loss\n1,", "document.json": b'{"log_history": [{"loss": ', "lines.jsonl": b""}
    path = tmp_path / f"{kind}.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(starts[kind])
        block = b'{"step": 1, "loss": 2.0}\n' * 40_000 if kind == "lines.jsonl" else b"1" * 10**6
        for _ in range(2 * MAX_JSON_BYTES // len(block)):
            file.write(block)

    done = subprocess.run(
        caboose_command("replay", str(path)),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )

    assert done.returncode == 2, done.stderr
    assert "MiB" in done.stderr
    assert "Traceback" not in done.stderr
