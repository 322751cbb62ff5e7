"""The layers of a suite, alone, and the first run of a model, against the default provider."""
