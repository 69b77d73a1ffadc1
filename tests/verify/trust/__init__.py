"""Decoders of many families, spoiled or only rewritten: what `verify` is measured on."""
