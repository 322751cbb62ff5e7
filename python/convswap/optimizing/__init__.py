"""`convswap optimize`: measure every Conv both ways on this device, and swap or fuse only what gains."""
