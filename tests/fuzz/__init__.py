"""Whatever bytes come in, in whatever pieces; `MULTITAP_EXAMPLES` says how many to try."""
