"""The application: the command line, run folders and reports, on top of the library."""
