"""Records: versioned data, outputs of methods, workflow runs and evaluated definitions.

`Records` opens the four repositories on one datastore. They write through its tree only, so every change is journaled
(V7), and they keep the catalog up to date.
"""
