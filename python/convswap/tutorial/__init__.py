"""Teaching: the ladder of kernels, the lab for user-written kernels, and the study of AlexNet's time.

These packages use the other packages of convswap. Only the command line imports them.
"""
