"""What commands print: for each record `x_text` for people and `x_json` for scripts, side by side."""
