"""What a model is and how it is looked into: loading, layout, the tap."""
