"""What a labelled task is made of: units, and targets."""
