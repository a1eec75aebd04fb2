"""One file a verb, of at most 150 lines; none imports another."""
