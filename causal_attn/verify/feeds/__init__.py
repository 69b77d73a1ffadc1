"""Inputs for a graph: fresh and named, for every size that its contract allows."""
