"""Checks of an exported graph; torch is never imported here."""
