"""The studies."""

# The folder of results that cannot be made from records: they stay in the repository.
WITHOUT_RECORDS = "without_records"
