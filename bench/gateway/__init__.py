"""What the gateway costs, next to a bare forwarder and to other gateways."""
