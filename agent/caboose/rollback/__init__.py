"""Going back: snapshots in memory, checkpoints on disk, and all ranks' agreement to act at one boundary or not."""
