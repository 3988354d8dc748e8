"""Packs: small files that travel together, as the members of one ZIP archive in the store."""
