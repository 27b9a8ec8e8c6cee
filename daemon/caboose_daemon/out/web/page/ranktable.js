/*
 * The ranks from the stream: everything first, then changed columns.
 *
 * A rank's row is one object for as long as the set of ranks stays the same, so thousands of them cost no more than the new
 * numbers. `heard` is when a rank was last seen, by the daemon's clock, or null for just now.
 */

export class RankTable {
  constructor() {
    this.rows = [];
    this.version = 0;
    this._now = 0;
  }

  /** Takes the `ranks` of a status, if it has any, and the daemon's time. */
  take(ranks, now) {
    this._now = now;
    if (ranks?.is_whole) this.rows = placesOf(ranks.columns.rank).map((rank) => ({ rank }));
    for (const [name, column] of Object.entries(ranks?.columns ?? {})) this._fill(name, column);
    let isChanged = ranks !== undefined;
    for (const row of this.rows) {
      const silent = row.heard === null ? 0 : Math.max(0, now - row.heard);
      isChanged ||= silent !== row.silent_seconds;
      row.silent_seconds = silent;
    }
    if (isChanged) this.version += 1;
  }

  _fill(name, { all, at, to }) {
    const { rows } = this;
    if (to === undefined) for (const row of rows) row[name] = all;
    else if (at === undefined) for (let place = 0; place < rows.length; place += 1) rows[place][name] = to[place];
    else at.forEach((place, index) => (rows[place][name] = to[index]));
  }
}

/** The rank numbers; never `all`, since they differ. */
const placesOf = ({ to }) => to ?? [];
