"""What a command leaves behind: files written whole or not at all, tables for terminals, pages, drawings."""
