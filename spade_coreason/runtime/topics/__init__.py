"""Topics: `@subscribe`, requests to a topic broker, and the store and the deliveries of the broker itself."""
