"""Sockets and HTTP/1.1 connections, with their limits and time-outs."""
