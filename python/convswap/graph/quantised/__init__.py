"""Turn quantised convolutions, in the forms that quantisation tools write, into `convswap.QuantConv`."""
