"""Early stopping and the best checkpoint: one answer on all ranks, from the validation values that each was given."""
