"""The commands that send one request, or a page of requests."""
