"""How an agent appears to others: presence, vCard, PEP, service discovery, roster, ad-hoc commands."""
