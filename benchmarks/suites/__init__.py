"""The suites: what each of them measures, and what a row is compared with."""
