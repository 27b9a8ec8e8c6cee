"""How the agent gets into a training process: attach, the no-code launcher, and finding model, optimizer and loss."""
