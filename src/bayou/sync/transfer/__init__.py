"""Carrying out a plan: uploads, downloads, and the changes of the tree."""
