"""Whether a machine, and a cluster, are ready for a training, and what to mend: one finding for each check."""
