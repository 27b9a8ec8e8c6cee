"""One step of all ranks: alignment, reduction over ranks, samples of layers, and the view that rules get."""
