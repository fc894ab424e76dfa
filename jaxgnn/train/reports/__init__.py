"""What a run tells: records, tables, plots, descriptions of its data, comparisons."""
