"""What the daemon hands to others while it runs: annotations to Grafana, curves to TensorBoard and W&B."""
