"""The targets: each is one way into the product that acts out scenarios. `catalog` lists them."""
