"""Hooks and statistics on the training thread, up to the vector that leaves the device."""
