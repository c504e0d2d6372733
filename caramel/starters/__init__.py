"""Program files to begin with: small, complete, and to be changed."""
