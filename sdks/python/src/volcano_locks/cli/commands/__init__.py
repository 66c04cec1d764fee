"""The commands that send one request, or one request per page of a list."""
