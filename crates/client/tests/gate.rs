//! A network that can be parted: while the gate is shut, nothing arrives and nobody connects, and no
//! connection ends. What was sent arrives when it opens again, as TCP would have it.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_client::Connect;
use flagstone_platform::sync::Signal;
use flagstone_platform::{IoBuf, Stream};
use flagstone_sim::{SimNetwork, SimStream};

#[derive(Clone, Default)]
pub(crate) struct Gate {
    state: Rc<GateState>,
}

#[derive(Default)]
struct GateState {
    is_shut: Cell<bool>,
    changed: Signal,
}

impl Gate {
    pub(crate) fn set_shut(&self, is_shut: bool) {
        self.state.is_shut.set(is_shut);
        self.state.changed.notify();
    }

    async fn open(&self) {
        loop {
            let changed = self.state.changed.wait();
            if !self.state.is_shut.get() {
                return;
            }
            changed.await;
        }
    }
}

/// Connects through the simulated network and the gate.
#[derive(Clone)]
pub(crate) struct GateConnect {
    pub(crate) network: SimNetwork,
    pub(crate) gate: Gate,
}

impl Connect for GateConnect {
    type Stream = GateStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<GateStream>> + 'static {
        let (network, gate) = (self.network.clone(), self.gate.clone());
        async move {
            gate.open().await;
            let stream = network.connect(&address.to_string()).await?;
            let is_ended = Rc::default();
            Ok(GateStream {
                stream,
                gate,
                is_ended,
            })
        }
    }
}

#[derive(Clone)]
pub(crate) struct GateStream {
    stream: SimStream,
    gate: Gate,
    /// This side has ended it, so it waits for no gate.
    is_ended: Rc<Cell<bool>>,
}

impl GateStream {
    async fn passed(gate: Gate, is_ended: Rc<Cell<bool>>) {
        loop {
            let changed = gate.state.changed.wait();
            if !gate.state.is_shut.get() || is_ended.get() {
                return;
            }
            changed.await;
        }
    }
}

impl Stream for GateStream {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let reading = self.stream.read(buf);
        let passed = GateStream::passed(self.gate.clone(), self.is_ended.clone());
        async move {
            let result = reading.await;
            passed.await;
            result
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let reading = self.stream.read_exact(buf);
        let passed = GateStream::passed(self.gate.clone(), self.is_ended.clone());
        async move {
            let result = reading.await;
            passed.await;
            result
        }
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let writing = self.stream.write_all(bufs);
        let passed = GateStream::passed(self.gate.clone(), self.is_ended.clone());
        async move {
            passed.await;
            writing.await
        }
    }

    fn shutdown(&self) {
        self.is_ended.set(true);
        self.gate.state.changed.notify();
        self.stream.shutdown();
    }

    fn peer(&self) -> String {
        self.stream.peer()
    }
}
