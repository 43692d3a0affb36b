"""What operators see of a running gateway from outside.

`logs` writes its log, as text or as JSON; `metrics` has counters and histograms, and writes them
for Prometheus; `spans` records requests, and `otlp` sends them to a collector. It must not know
what a gateway is made of: the layers above describe themselves with these values.
"""
