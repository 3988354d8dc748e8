"""The index: the record of what a store holds, a tree of immutable nodes named by one mutable object, the head."""
