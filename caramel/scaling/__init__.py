"""What a training would do on other numbers of workers, links and policies: many predictions from one trace."""
