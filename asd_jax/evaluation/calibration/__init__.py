"""From decoded calibration prompts to the controls that an audit may freeze."""
