"""The scenario suite that every target of the product runs, and the checker of histories."""
