"""`volcano-locks verify`: checks from outside whether a service keeps its promises (CLI-17 to CLI-19).

`all_checks.CHECKS` lists the checks, each a small function. A check uses a lock of its own, trusts only what it
observes itself, and leaves the lock free. Times come from this machine's clock alone. A request was served between its
sending and its response, so each limit is compared with the end of that interval that favours the service. If responses
are too slow for a verdict, the check reports so and counts as failed.

Passing is no proof of behaviour under load, over a restart or after a failure of the store.
"""
