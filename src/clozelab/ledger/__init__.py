"""Runs and what is known of them: fingerprints, the launcher, collected results, verdicts, the report."""
