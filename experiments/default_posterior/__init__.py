"""The study of the library's default posterior against strong baselines."""
