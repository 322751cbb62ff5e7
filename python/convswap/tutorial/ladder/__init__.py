"""The ladder: measures and checks every optimisation step from plain loops to tensor cores, and its text."""
