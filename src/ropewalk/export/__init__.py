"""Files that other tools read: statistics of queries and keys, bases, scores of heads, from the sums of a capture."""
