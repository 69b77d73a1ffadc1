"""What a graph takes and returns: tokens, past, masks and positions, found by names and dims."""
