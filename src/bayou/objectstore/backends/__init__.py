"""Transports: S3, GCS, Azure and memory through obstore, and shared directories; credentials; strict listings."""
