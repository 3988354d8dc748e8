"""The local Spark server: a command that needs Spark starts it, later commands reuse it, a watcher ends it."""
