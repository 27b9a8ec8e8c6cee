"""The API's JSON shapes, the live stream's broker, and the API's client."""
