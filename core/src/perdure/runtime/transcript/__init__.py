"""What a session knows of its transcript, and how a summary takes the place of old turns."""
