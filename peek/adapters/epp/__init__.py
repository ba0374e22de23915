"""An endpoint picker for the Gateway API Inference Extension: `peek-epp`, which Envoy asks over ext_proc.

`picker` decides, with a `FleetPlanner` in a thread of its own, or by the fewest requests if that fails.
`exchange` speaks the protocol, `server` is the command.  gRPC and Envoy's messages are the extra `[epp]`.
"""
