"""Stores remember; they do not decide. One file or folder each; none imports another."""
