"""Findings joined over time: episodes, and the incidents that have one cause."""
