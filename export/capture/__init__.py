"""From a target to an ExportedProgram in which causal attention is one op."""
