"""Operations on doors, by which programs reach agents over HTTP."""
