"""A graph's own results in float64, for models whose source is not at hand."""
