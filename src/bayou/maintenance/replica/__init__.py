"""The steps of a replication, which makes one store a copy of another; `bayou.maintenance.replicate` calls them."""
