"""Commands over a whole store: setup, verify and repair, rebuild, gc, replicate."""
