"""Operations: what people and programs do to a platform and its stored data, each written once."""
