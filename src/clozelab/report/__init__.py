"""Pages, plots and tables of a report."""
