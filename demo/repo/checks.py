"""What the model disk-check calls."""


def judge(used: str, most: int = 90) -> dict[str, object]:
    """Say whether a disk of which `used` percent are used has room."""
    percent = int(used)
    return {"used": percent, "verdict": "full" if percent > most else "fine"}
