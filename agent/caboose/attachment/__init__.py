"""Attaching to a training process: attach, the no-code launcher, and finding the model, optimizer and loss."""
