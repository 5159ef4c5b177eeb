"""What is summed over tokens."""
