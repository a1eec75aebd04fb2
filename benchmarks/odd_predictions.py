from odd_lab import Cases

CASES = Cases("predictions")
