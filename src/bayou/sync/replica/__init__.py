"""Replication: what makes one store a copy of another. `bayou.sync.replicate` puts it together."""
