"""`sync.db` and its contents: journal, sync base, file stats, uploads and intents, change feed."""
