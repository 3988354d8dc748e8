"""The commands: one file for each group; a command parses, calls one function, and renders what it returns."""
