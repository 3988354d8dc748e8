"""For authors of stores and for our own tests: the contract suite, faults, and servers that run on this machine."""
