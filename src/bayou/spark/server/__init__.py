"""The warm local Spark server: started by the first command that needs it, found by the next, gone when nobody does."""
