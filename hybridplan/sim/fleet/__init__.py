"""Several replicas of an engine behind a router; prefill and decode apart; a host tier."""
