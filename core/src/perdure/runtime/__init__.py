"""Sessions and turns on top of the stores."""
