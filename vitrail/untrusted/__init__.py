"""Readers of files and values from untrusted sources, within one table of limits (limits.py).

A few hundred bytes of JSON, YAML, XML or an archive can stand for values that fill the memory or are nested too deeply. Whatever
is read from outside goes through these readers. They raise `ValueError`, which callers turn into an error with path and remedy.
"""
