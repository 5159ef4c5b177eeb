"""The version, in one place that importing costs nothing."""

__version__ = "0.2.0.dev0"
