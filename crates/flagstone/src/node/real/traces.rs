//! Traces of devices: read from here, beside the cores, of which none is asked.

use super::RealNode;
use crate::node::{DeviceTrace, NodeError, NodeErrorKind, TraceQuery};

impl RealNode {
    pub(super) fn trace_of(
        &self,
        device: &str,
        query: &TraceQuery,
    ) -> Result<DeviceTrace, NodeError> {
        let doing = format!("reading the trace of device '{device}'");
        let device = &self.devices[self.device_index(device, &doing)?];
        let trace = device.layers.as_ref().and_then(|layers| layers.trace());
        let Some(trace) = trace else {
            let found = "it has none";
            return Err(NodeError::new(NodeErrorKind::NotFound, doing, found).next(
                "restart the node with `--layer trace`, or with `layers = [\"trace\"]` in the device's section of the configuration",
            ));
        };
        Ok(DeviceTrace::of(&device.name, trace, query, self.clock_ns))
    }
}
