"""An endpoint picker for the Gateway API Inference Extension: `peek-epp`, which Envoy asks over ext_proc.

`picker` decides, with a `FleetPlanner` in its own thread, or by the fewest requests if that fails.
`exchange` speaks the protocol, `server` is the command.  The extra `[epp]` has gRPC and Envoy's messages.
"""
