"""A model by default and on convswap's convolutions: accuracy and time, as numbers, tables and a page."""
