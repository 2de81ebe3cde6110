"""What programs say of themselves: logs, metrics and traces, by OpenTelemetry and to Prometheus.

Read `logs.py` and `metrics.py` first. Nothing of OpenTelemetry is imported until a variable or a port asks for it.
"""
