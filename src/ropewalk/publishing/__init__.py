"""Results on the hub: pushing a folder as a dataset with a card of its own, and reading one back."""
