"""Modules as people write them, one file a style, and the table of what becomes of each."""
