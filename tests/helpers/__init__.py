"""What tests share, each thing once."""
