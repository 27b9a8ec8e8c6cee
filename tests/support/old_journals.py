"""Journals as earlier versions left them: what each schema brought is taken out again, the newest first."""

import sqlite3
from pathlib import Path

BROUGHT = {
    8: ["attempts.is_over", "sample_facts", "last_reports"],
    7: ["attempts.proof", "quarantine"],
    6: ["steps.device_bytes", "samples > looks", "latest_samples > closeups"],
    5: ["totals"],
    4: [
        *("steps.forward_seconds", "steps.backward_seconds", "steps.optimizer_seconds"),
        *("steps.num_samples", "steps.num_tokens", "looks"),
    ],
    3: ["attempts.reason", "attempts.start_step", "decisions", "ledger", "descriptions", "closeups"],
    2: ["episodes.worst", "episodes.told_step", "incidents"],
}
"""Columns, whole tables, and tables that were renamed."""


def make_old(path: Path, schema: int) -> None:
    """Takes a journal, which nobody has open, back to a schema."""
    connection = sqlite3.connect(path)
    for version in sorted((v for v in BROUGHT if v > schema), reverse=True):
        for name in BROUGHT[version]:
            if " > " in name:
                connection.execute("ALTER TABLE {} RENAME TO {}".format(*name.split(" > ")))
                continue
            table, _, column = name.partition(".")
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}" if column else f"DROP TABLE {table}")
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(schema),))
    connection.commit()
    connection.close()
