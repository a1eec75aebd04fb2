"""What can be wrong before anything is trained."""
