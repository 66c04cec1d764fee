"""The dashboard at `/ui`: its pages, and the files that they are made of."""
