"""`caboose try`: a short training with a change, beside the same steps without it. Never inside a live run."""
