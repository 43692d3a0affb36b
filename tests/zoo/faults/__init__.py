"""One class per fault: the honest server with one thing changed."""
