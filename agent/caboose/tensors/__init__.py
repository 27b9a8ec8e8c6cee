"""Tensors as the agent meets them: placement, shards, reading back without a sync, trees of tensors."""
