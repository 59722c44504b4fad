"""Serving: a model behind HTTP that holds under load, and the page that it comes with."""
