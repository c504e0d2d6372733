"""Pictures of a step and of a training: timelines for trace viewers, and reports in one HTML file."""
