"""The lab: a kernel of your own in the place of Conv nodes, compiled, checked, timed and ranked."""
