"""What every layer stands on: compiled modules, platforms, dtypes, arguments, host to device."""
