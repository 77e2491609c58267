"""Other programs' files, and archives."""
