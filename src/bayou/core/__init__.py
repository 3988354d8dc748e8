"""Modules that all packages share and that import none of them."""
