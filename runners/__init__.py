"""What carries experiments out."""
