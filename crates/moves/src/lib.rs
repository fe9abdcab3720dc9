//! Volumes that go from one node to another: who has the volume when either side can die, and the network between them.
//!
//! The design is `docs/decisions/2026-11-25-moves-between-nodes.md`; the steps of a move are those of `flagstone_device::transfer`, which knows no
//! network. Here are the two ends of it: [`here`] is what the node does that a volume comes to, [`away`] what the one does that it leaves.
//!
//! Promises:
//! - from the moment on in which the target has made the volume its own, durably, the origin serves nothing of it; before, the target doesn't;
//! - what was answered by one is there at the other;
//! - after a crash of either side at any moment, and with the network in whatever state, there is one that serves the volume, or none until
//!   the other can be asked;
//! - until the target is asked to finish, a crash of either side or a network that is gone only interrupts the copy
//!   (`docs/decisions/2026-11-28-moves-between-nodes-go-on.md`): what is durable at the target isn't copied again.
//!
//! It owns no device and no socket. Called by the node; calls the engine's transfer, the client and the server's trait.

pub mod away;
pub mod here;
