"""What runs say: tables, verdicts, pages, comparisons."""
