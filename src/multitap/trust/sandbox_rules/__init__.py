"""What a confined server may use: from its rules to a plan, and from what it used to rules."""
