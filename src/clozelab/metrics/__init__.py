"""Official scorers as pure functions, and the statistics of a comparison."""
