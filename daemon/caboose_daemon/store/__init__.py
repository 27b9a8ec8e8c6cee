"""Everything that knows SQL: the journal, its schema, and what is read back from it."""
