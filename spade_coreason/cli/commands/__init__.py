"""The commands of `spade-coreason`, a module each."""
