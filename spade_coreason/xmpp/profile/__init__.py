"""The agent as others see it: presence, vCard, PEP, service discovery, roster, ad-hoc commands."""
