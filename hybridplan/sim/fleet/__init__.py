"""Several replicas of an engine behind a router; prefill and decode apart; a host tier.

``run.run_fleet(ask.FleetAsk(...))`` answers for one fleet, ``compare.compare_routers`` for every
router, ``find.find_replicas`` for the fewest replicas that keep an SLO. Replicas that depend on
each other share a clock (``cosim``, ``disagg``); the others are plain replays (``alone``).
"""
