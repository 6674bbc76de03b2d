"""Reports: what a check found, as data, and as text, JSON, JUnit XML, HTML and a badge."""
