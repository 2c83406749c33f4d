"""What every network transport needs: agreement, notebooks on disk, answering, absence. Knows no transport."""
