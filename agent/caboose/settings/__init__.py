"""What `attach` and the environment set: checked before training begins."""
