"""Commands that measure and explain: they talk to servers over HTTP and own no lifetime."""
