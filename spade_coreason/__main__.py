"""`python -m spade_coreason` is the command `spade-coreason`."""

from .cli import main

if __name__ == "__main__":
    main()
