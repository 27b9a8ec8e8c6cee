"""What `caboose try` measured, judged and remembered: `judging` for one trial, `knowledge` for all that were kept."""
