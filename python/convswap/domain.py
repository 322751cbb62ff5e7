"""The domain of the library's ops, and its version."""

DOMAIN = "convswap"
DOMAIN_VERSION = 1
