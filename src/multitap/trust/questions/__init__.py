"""What servers may ask people and models: named askers, safe forms, bounded sampling."""
