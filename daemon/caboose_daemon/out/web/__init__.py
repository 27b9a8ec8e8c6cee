"""The daemon's HTTP side: metrics, health, the JSON API, the live stream and the page."""
