"""A seeded simulation of whole deployments: real server and client code on virtual time, model engines and network."""
