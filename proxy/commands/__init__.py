"""The click command of each tool: options and help; the work is in `proxy/tools`."""
