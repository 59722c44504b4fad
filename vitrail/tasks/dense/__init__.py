"""What tasks that answer for places of an image have in common."""
