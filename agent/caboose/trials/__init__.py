"""Short trainings whose every trace is removed: learning rates, sharpness, inspection, overfitting a batch."""
