"""How well the scanner tells poisoned definitions from honest ones."""
