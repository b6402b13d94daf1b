"""Why the scheduler did what it did: runs that can be asked, and the answers."""
