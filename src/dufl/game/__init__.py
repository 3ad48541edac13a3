"""The game between a server and its clients: from parameters to a certified plan."""
