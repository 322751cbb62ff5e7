"""Output of commands: files written completely or not at all, terminal tables, HTML pages, drawings."""
