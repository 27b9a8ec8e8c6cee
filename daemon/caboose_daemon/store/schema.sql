-- The journal's tables. NULL means unknown.
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS totals (
    job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    body BLOB NOT NULL -- JobTotals as msgpack: counts since the job began, rows removed by the retention included
);

CREATE TABLE IF NOT EXISTS attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    began REAL NOT NULL,
    world INTEGER NOT NULL,
    launch TEXT NOT NULL,
    agent_attempt INTEGER NOT NULL,
    reason TEXT NOT NULL DEFAULT '', -- rollback, or empty for a launch
    start_step INTEGER NOT NULL DEFAULT 0,
    proof TEXT, -- digest of what its ranks prove their launch with; empty: they have no secret, NULL: not known
    is_over INTEGER NOT NULL DEFAULT 0, -- whether it had ended when this was written
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

CREATE TABLE IF NOT EXISTS descriptions (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    body BLOB NOT NULL, -- Hello of the lowest rank as msgpack: layers, settings, available statistics
    PRIMARY KEY (job, attempt)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS latest_samples (
    job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    body BLOB NOT NULL -- layers and modules of the last sampled step, in the API's shape, as msgpack
);

CREATE TABLE IF NOT EXISTS samples (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, -- 1, 2, 3, ... in order of arrival; used for thinning
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    seen INTEGER NOT NULL, -- bit mask of its statistics
    is_onset INTEGER NOT NULL,
    body BLOB NOT NULL, -- columns of numbers by name, as msgpack; the layers are in descriptions
    PRIMARY KEY (job, number)
);

CREATE TABLE IF NOT EXISTS sample_facts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    body BLOB NOT NULL, -- SampleFacts as msgpack: what diagnoses read of a sampled step
    PRIMARY KEY (job, attempt, step)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS last_reports (
    job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    body BLOB NOT NULL -- the ranks' reports of the last sampled step without their arrays, as msgpack
);

-- The table `steps` is made from steps/columns.py (see step_table.py).

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
    worst BLOB, -- NULL if it is the first or the last
    told_step INTEGER,
    PRIMARY KEY (job, id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS incidents (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    rule TEXT NOT NULL,
    worst TEXT NOT NULL,
    opened_time REAL NOT NULL,
    closed_time REAL, -- NULL while it is open
    members BLOB NOT NULL, -- ids of episodes as msgpack
    body BLOB NOT NULL, -- Incident without its episodes, as msgpack
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS decisions (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    state TEXT NOT NULL,
    body BLOB NOT NULL, -- Decision as msgpack
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS ledger (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    kind TEXT NOT NULL, -- snapshot or checkpoint
    name TEXT NOT NULL,
    time REAL NOT NULL,
    body BLOB NOT NULL, -- LedgerEntry as msgpack
    PRIMARY KEY (job, kind, name)
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

CREATE TABLE IF NOT EXISTS quarantine (
    id INTEGER PRIMARY KEY,
    source TEXT NOT NULL, -- the table that the row was in
    key TEXT NOT NULL, -- its primary key, as JSON
    reason TEXT NOT NULL,
    time REAL NOT NULL, -- when it was set aside
    body BLOB NOT NULL, -- all its columns by name, as msgpack
    UNIQUE (source, key)
);
