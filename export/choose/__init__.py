"""Which form a graph is written in: by measurement, or by a fixed table."""
