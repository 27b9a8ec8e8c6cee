-- The journal. NaN has no place in SQLite's REAL (it becomes NULL), so `bad` says which numbers were NaN:
-- 1 loss, 2 grad_norm.
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    began REAL NOT NULL,
    world INTEGER NOT NULL,
    launch TEXT NOT NULL,
    agent_attempt INTEGER NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS members (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    state TEXT NOT NULL,
    error TEXT NOT NULL,
    step INTEGER NOT NULL,
    last_seen REAL NOT NULL,
    PRIMARY KEY (job, attempt, rank)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS steps (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    loss REAL,
    loss_min REAL,
    loss_max REAL,
    grad_norm REAL,
    lr REAL,
    step_seconds REAL,
    data_seconds REAL,
    agent_seconds REAL,
    num_ranks INTEGER NOT NULL,
    bad INTEGER NOT NULL,
    PRIMARY KEY (job, attempt, step)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS episodes (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    severity TEXT NOT NULL,
    num_findings INTEGER NOT NULL,
    detected_time REAL NOT NULL,
    last_time REAL NOT NULL,
    is_open INTEGER NOT NULL,
    first BLOB NOT NULL, -- Finding as msgpack, which keeps NaN
    last BLOB NOT NULL,
    PRIMARY KEY (job, id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    fields BLOB NOT NULL -- msgpack
);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, id);
