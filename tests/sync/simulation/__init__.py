"""A deterministic simulation of the protocol on the real sync code.

One scheduler, two or three clients, one bucket. Every request of a client, and every transaction on its state, waits
until the scheduler lets it go on; which one goes on, what becomes of a request (it may be lost, answered to nobody, or
arrive late) and what programs do to the trees meanwhile is drawn from one seed.

    bucket.py     the store: ETags, conditions, pages of a listing, a clock of its own
    scheduler.py  clients as threads of which one runs at a time
    virtual.py    what makes the real code obey: time, ids, order and speed
    client.py     one machine: a tree, programs that write into it, commands
    oracle.py     what must never happen, checked at every write to the bucket and after every command
    world.py      one scenario: what happens, drawn from a seed
"""
