"""The figures of the papers, simulated from published times of layers; `benchmarks.papers` is the command."""
