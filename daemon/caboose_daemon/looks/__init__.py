"""The history of closer looks: what each showed of every layer, kept in the journal within bounds, read as a map."""
