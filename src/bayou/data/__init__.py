"""What programs keep: versioned data, outputs of methods, workflow runs and evaluated definitions.

`Records` opens all four repositories on one datastore; they write through its tree only, so every change is journaled.
"""
