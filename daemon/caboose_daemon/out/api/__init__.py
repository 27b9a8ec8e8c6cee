"""The JSON shapes of the API, the live stream's broker, and the client of that API."""
