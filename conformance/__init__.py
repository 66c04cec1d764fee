"""The book of scenarios that every face of the product acts out, and the checker of histories."""
