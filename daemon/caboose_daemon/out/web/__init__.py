"""The HTTP server: metrics, health, the JSON API, the live stream and the page."""
