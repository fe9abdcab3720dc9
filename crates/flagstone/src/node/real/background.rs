//! Turns of engines' own work, and of moves: a tenant of each for each engine, among those of the volumes.

use std::rc::Rc;

use flagstone_device::engine::{Background, BackgroundTurn, ComingTurn, Engine, Work};
use flagstone_platform::Platform;
use flagstone_sched::{Limits, Slo, Tenant, Turn, Turns, Want};
use flagstone_types::BLOCK_SIZE;

/// What an engine's own work has of what is promised to the background, in millionths: the rest is for moves.
const OWN_MILLIONTHS: u32 = 750_000;
const MOVES_MILLIONTHS: u32 = 1_000_000 - OWN_MILLIONTHS;

/// The tenant of an engine.
struct OwnWork<P: Platform> {
    tenant: Tenant<P>,
}

/// What it holds.
struct OwnTurn<P: Platform>(Turn<P>);

impl<P: Platform> BackgroundTurn for OwnTurn<P> {
    fn used(&mut self, work: Work) {
        self.0.used((work.times > 0).then(|| want(work)));
    }
}

impl<P: Platform> Background for OwnWork<P> {
    fn turn(&self, work: Work) -> ComingTurn {
        let tenant = self.tenant.clone();
        Box::pin(async move {
            let turn: Box<dyn BackgroundTurn> = Box::new(OwnTurn(tenant.turn(want(work)).await));
            turn
        })
    }

    fn turn_now(&self, work: Work) -> Box<dyn BackgroundTurn> {
        Box::new(OwnTurn(self.tenant.turn_now(want(work))))
    }
}

fn want(work: Work) -> Want {
    let bytes = work.blocks.saturating_mul(BLOCK_SIZE);
    let want = match work.writes {
        true => Want::write(0, bytes, false),
        false => Want::read(0, bytes),
    };
    want.times(work.times)
}

/// Has an engine's own work wait for its turns from now on. All engines of a device share what its background is promised.
/// Returns its tenant.
pub(super) fn schedule<P: Platform>(engine: &Engine<P>, turns: &Turns<P>) -> Tenant<P> {
    let tenant = turns.tenant(part_of(engine, OWN_MILLIONTHS), Limits::default());
    let work = OwnWork {
        tenant: tenant.clone(),
    };
    engine.set_background(Rc::new(work));
    tenant
}

/// Whose turns all moves take that copy from or to an engine. What they read and write is nobody's who waits, until the volume is
/// held.
pub(super) fn mover<P: Platform>(engine: &Engine<P>, turns: &Turns<P>) -> Tenant<P> {
    turns.tenant(part_of(engine, MOVES_MILLIONTHS), Limits::default())
}

/// All engines of a device have equal parts.
fn part_of<P: Platform>(engine: &Engine<P>, millionths: u32) -> Slo {
    let engines = u32::from(engine.superblock().journal_count).max(1);
    Slo::Background(millionths / engines)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod victims;
