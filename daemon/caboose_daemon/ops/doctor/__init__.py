"""Whether everything between a run and its people works, with the fix beside what does not."""
