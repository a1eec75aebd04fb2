"""What can be known to be wrong before an experiment starts: a check is a small function that gives findings."""
