"""The pictures of the documentation, each made by a script from a real run. `make pictures` makes them."""
