"""Worker pools: pure parts that decide about groups, workers and answers (design page `workers.md`)."""
