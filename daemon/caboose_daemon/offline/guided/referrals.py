"""Problems that a diagnosis of a training curve does not solve, and where to look instead."""

import re

REFERRALS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("oom", "out of memory"),
        "out of memory: no cause here explains it. Halve the batch and accumulate two steps, use activation "
        "checkpointing or FSDP, and look at torch.cuda.memory_summary()",
    ),
    (
        ("reward", "reinforcement", "rl", "ppo", "dqn", "episode return"),
        "reinforcement learning: its loss need not fall, so most causes do not apply. Judge by the return over "
        "episodes, and look at the value loss, the entropy and the KL divergence first",
    ),
    (
        ("dataloader worker", "worker exited", "bus error", "too many open files"),
        "a DataLoader that fails: run it with num_workers=0 to see its own error, and raise the shared memory",
    ),
)


def referral(text: str) -> str:
    """The advice for a description that names such a problem; empty for all others."""
    lower = text.lower()
    for words, advice in REFERRALS:
        if any(re.search(rf"\b{re.escape(word)}\b", lower) for word in words):
            return advice
    return ""
