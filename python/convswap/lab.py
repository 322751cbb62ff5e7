"""The lab by its public name, `convswap.lab`: it is the package `convswap.tutorial.lab`."""

import sys

from convswap.tutorial import lab

sys.modules[__name__] = lab
