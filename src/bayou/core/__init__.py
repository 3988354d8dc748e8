"""What all packages share and none owns: atomic files, file locks, times, hints. It imports no package above it."""
