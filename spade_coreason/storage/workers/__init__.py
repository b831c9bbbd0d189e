"""The workers that share one database: their leases, the renewal of a lease, and the calls between them."""
