"""Synthetic text: a Markov chain over letters, with words, punctuation and a long-tailed vocabulary."""

import torch


class TextStream:
    """Endless batches of token ids, the same for the same seed; every rank draws different ones."""

    def __init__(self, *, vocabulary: int, length: int, batch: int, seed: int) -> None:
        self.vocabulary = vocabulary
        self._length = length
        self._batch = batch
        self._draw = torch.Generator().manual_seed(seed)
        language = torch.Generator().manual_seed(7)  # one language for all ranks
        shape = (vocabulary, vocabulary)
        ranks = torch.argsort(torch.rand(shape, generator=language), dim=1).to(torch.float32)
        weights = 1.0 / (1.0 + ranks) ** 1.6  # each letter is followed by a few others, mostly
        self._next = weights / weights.sum(dim=1, keepdim=True)

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> torch.Tensor:
        """batch x (length + 1) tokens: input and, shifted by one, target."""
        tokens = torch.empty(self._batch, self._length + 1, dtype=torch.long)
        tokens[:, 0] = torch.randint(self.vocabulary, (self._batch,), generator=self._draw)
        for i in range(self._length):
            tokens[:, i + 1] = torch.multinomial(self._next[tokens[:, i]], 1, generator=self._draw).squeeze(1)
        return tokens
