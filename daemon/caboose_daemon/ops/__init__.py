"""Set-up, checks and exercises: doctor, the monitoring stack, Grafana, drills, demo."""
