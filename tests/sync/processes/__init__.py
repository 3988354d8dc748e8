"""Real processes on one store, killed at random and at chosen points, and what must be true of it afterwards.

worker.py      what one process does to its clone, and what it says of that in a file of its own
points.py      where a process can be told to die: at its n-th rename, sync, transaction, request …
forkserver.py  starts workers by fork, so that a round takes a second; kills them, and tells how they ended
history.py     every version of the index that the store's log names, with the bytes
judge.py       compares what the workers said with the history
rounds.py      one round: who works, who is killed when, drawn from one seed
upkeep.py      what a process does that compacts and collects the store, and the copies of what it deletes
audit.py       whether that upkeep has deleted, moved or lost anything that it must not
kept_rounds.py a round during which the store is compacted and collected, by processes that are killed, too
"""
