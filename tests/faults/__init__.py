"""What is promised of results when things go wrong, tried at random: `make faults` (docs/reliability.md)."""
