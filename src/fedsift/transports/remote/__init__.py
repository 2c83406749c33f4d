"""What every network transport needs: introduction of sites, notebooks on disk, answering, absence. Independent of any
transport."""
