"""What sets Caboose up, checks it and exercises it: doctor, the monitoring stack, Grafana, drills, demo."""
