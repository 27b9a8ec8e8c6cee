"""Going back: when it is worth it, what to go back to, what became of it, and the trail it leaves."""
