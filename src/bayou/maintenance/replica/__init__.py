"""Replication: what makes one store a copy of another. `bayou.maintenance.replicate` puts it together."""
