"""Worker pools: pure parts that decide about groups and workers. docs/design/012-pool-policy-and-library.md"""
