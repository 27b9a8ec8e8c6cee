"""Everything that uses SQL: the journal, its schema, and reading it back."""
