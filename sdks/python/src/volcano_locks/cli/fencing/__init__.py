"""`volcano-locks fencing sql`: SQL with which a database refuses late writes."""
