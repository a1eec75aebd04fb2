"""What runs will cost, before they run."""
