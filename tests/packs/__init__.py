"""Tests of packs: small files that travel together."""
