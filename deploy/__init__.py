"""What runs beside a search where it is deployed."""
