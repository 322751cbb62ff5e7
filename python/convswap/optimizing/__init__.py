"""`convswap optimize`: time each Conv by the default provider, swapped and fused; keep the fastest."""
