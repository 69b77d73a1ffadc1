"""The rules of the influence proof, one file for each kind of operator."""
