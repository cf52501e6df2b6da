"""The command line. Each family of commands is a module; they call the client, the store and wiring, and print."""
