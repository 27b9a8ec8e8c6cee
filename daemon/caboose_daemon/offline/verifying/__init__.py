"""Whether a declared change made a run better: before and after, compared with a test that may say it cannot tell."""
