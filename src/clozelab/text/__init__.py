"""What is said to people, and how their files and words are read."""
