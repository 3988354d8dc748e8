"""The plan of a sync: the scan of the tree, the snapshot of the store, and the decision for each path."""
