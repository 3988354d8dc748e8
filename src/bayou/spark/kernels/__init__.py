"""What tasks do with records: the functions of the point way, behind thin Arrow adaptors. No Spark in here."""
