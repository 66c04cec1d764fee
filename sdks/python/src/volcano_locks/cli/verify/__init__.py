"""`volcano-locks verify`: does the service at an address keep its promises? Asked from outside (CLI-17 to CLI-19).

Each promise is a small function in a table (`table.CHECKS`). A check works on a lock of its own, believes only
what it saw itself, and leaves the lock free. Time is judged by this side's clock alone: a request was served at
some instant between being sent and being answered, so each bound is taken from the side that cannot blame a
service which is right. Where the answers come too slowly to tell, the check says so, and does not count as held.

Not promised: that what held in one run holds under load, over a restart or over a failure of the store.
"""
