//! Turns of engines' own work: a tenant for each engine, among those of the volumes.

use std::rc::Rc;

use flagstone_device::engine::{Background, BackgroundTurn, ComingTurn, Engine, Work};
use flagstone_platform::Platform;
use flagstone_sched::{Limits, Slo, Tenant, Turn, Turns, Want};
use flagstone_types::BLOCK_SIZE;

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
    let slo = Slo::Background(engine.superblock().journal_count.into());
    let tenant = turns.tenant(slo, Limits::default());
    let work = OwnWork {
        tenant: tenant.clone(),
    };
    engine.set_background(Rc::new(work));
    tenant
}

#[cfg(test)]
mod tests;
