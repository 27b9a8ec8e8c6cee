"""`caboose stack`: a real Prometheus and a real Alertmanager beside the daemon, with everything configured."""
