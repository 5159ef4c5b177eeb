"""From a study to sums on disk."""
