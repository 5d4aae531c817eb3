"""The steps: one module per `StepKind`, each with `Payload` and `run(context, payload) -> result`."""
