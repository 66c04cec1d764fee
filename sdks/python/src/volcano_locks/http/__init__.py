"""HTTP/1.1 connections and what reads responses from them."""
