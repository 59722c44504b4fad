"""The HTTP server for a model, and its web page."""
