from .doors import (
    Doors as Doors,
)
