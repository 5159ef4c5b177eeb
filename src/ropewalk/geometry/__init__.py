"""Functions of moments alone: no torch, no files."""
