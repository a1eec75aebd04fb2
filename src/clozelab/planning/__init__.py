"""What an experiment will cost."""
