"""Short trainings that are undone afterwards: learning rates, sharpness, inspection, overfitting one batch."""
