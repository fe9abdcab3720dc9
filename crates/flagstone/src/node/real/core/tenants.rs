//! What volumes of one core are promised, whose turns their operations take, and what was counted of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use flagstone_platform::{Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_sched::{Tenant, WeakTenant};
use flagstone_types::DvolId;

use super::CoreNode;
use crate::node::real::attributes::{Receiving, VolumeAttributes};
use crate::node::real::slo::{Floors, note_floor, terms_of};
use crate::node::real::volume::VolumeCounters;
use crate::node::{Slo, VolumeLook, VolumeMetrics};

/// How long a tenant is kept that nobody uses, at least; twice as long at most.
const LINGER_NS: u64 = 10_000_000_000;

/// A tenant that nobody may use any more.
pub(super) struct Kept {
    /// When it was made, or was last seen to be used.
    since: Time,
    tenant: Tenant<UringPlatform>,
    /// Device time that it had used by then.
    used_ns: u64,
}

impl Kept {
    fn now(platform: &UringPlatform, tenant: Tenant<UringPlatform>) -> Kept {
        Kept {
            since: platform.now(),
            used_ns: tenant.used_ns(),
            tenant,
        }
    }

    /// Whether somebody has it, or has had turns of it since.
    fn is_used(&self) -> bool {
        self.tenant.is_shared() || self.tenant.used_ns() != self.used_ns
    }
}

/// The first one longest.
pub(super) type Lingering = VecDeque<Kept>;

/// Lets each go once nobody has used it for a while, until there is none: whoever opens a volume for each call has the same one each time, with what its limit
/// has left.
async fn end_lingering(platform: UringPlatform, lingering: Weak<RefCell<Lingering>>) {
    let since = |all: &RefCell<Lingering>| all.borrow().front().map(|kept| kept.since);
    while let Some(since) = lingering.upgrade().and_then(|all| since(&all)) {
        platform.sleep_until(since.plus_ns(LINGER_NS)).await;
        let now = platform.now();
        let Some(lingering) = lingering.upgrade() else {
            return;
        };
        let is_over = |kept: &mut Kept| now.since(kept.since) >= LINGER_NS;
        loop {
            let over = lingering.borrow_mut().pop_front_if(is_over);
            let Some(kept) = over else {
                break;
            };
            // Not while the list is borrowed: whoever is the last to let it go does what is to be done for that.
            if kept.is_used() {
                let again = Kept::now(&platform, kept.tenant);
                lingering.borrow_mut().push_back(again);
            }
        }
    }
}

impl CoreNode {
    /// Puts what was counted of a volume into a look at it.
    pub(in crate::node::real) fn fill_look(&self, look: VolumeLook) -> Option<VolumeLook> {
        let id = look.id;
        let tenant = self.tenants.borrow().get(&id).and_then(WeakTenant::upgrade);
        let filled = self
            .counters
            .borrow()
            .get(&id)?
            .fill_look(look, self.platform.now());
        Some(match tenant {
            None => filled,
            Some(tenant) => VolumeLook {
                waiting: tenant.waiting(),
                used_ns: tenant.used_ns(),
                limited_ns: tenant.limited_ns(),
                promised_ns: tenant.promised_ns(),
                ..filled
            },
        })
    }

    /// Copies of all volumes' counters.
    pub(in crate::node::real) fn volume_metrics(&self) -> Vec<VolumeMetrics> {
        let counters = self.counters.borrow();
        let named = counters
            .iter()
            .filter_map(|(id, c)| Some((self.names.shown_name_of(*id)?, *id, c)));
        named
            .map(|(name, id, c)| self.metrics_of(name, id, c))
            .collect()
    }

    /// Whose turns moves take that copy from or to an engine.
    pub(in crate::node::real) fn mover_of(&self, engine: usize) -> Option<Tenant<UringPlatform>> {
        self.engines.get(engine).map(|owned| owned.mover.clone())
    }

    /// What gives a volume's operations their turns.
    pub(in crate::node::real) fn tenant_of(
        &self,
        device: usize,
        id: DvolId,
    ) -> Option<Tenant<UringPlatform>> {
        let known = self.tenants.borrow().get(&id).and_then(WeakTenant::upgrade);
        let tenant = match known {
            Some(tenant) => tenant,
            None => {
                let (slo, limits) = terms_of(&self.slo_of(id));
                let stats = self.counters_of(id).turns.clone();
                let tenant = self.turns.get(device)?.tenant_counted(slo, limits, stats);
                self.tenants.borrow_mut().insert(id, tenant.downgrade());
                self.linger(&tenant);
                tenant
            }
        };
        Some(tenant)
    }

    /// Nobody on this core gets turns of a volume any more: it has gone elsewhere, or is deleted. Whoever still has it open keeps what asks for them, a
    /// client as long as it is attached.
    pub(super) fn leave_tenant(&self, id: DvolId) {
        let tenant = self.tenants.borrow_mut().remove(&id);
        if let Some(tenant) = tenant.and_then(|tenant| tenant.upgrade()) {
            tenant.count_used();
            tenant.leave();
        }
    }

    /// Keeps a tenant for a while, also if nobody else does.
    fn linger(&self, tenant: &Tenant<UringPlatform>) {
        let mut lingering = self.lingering.borrow_mut();
        lingering.push_back(Kept::now(&self.platform, tenant.clone()));
        // Others are promised less as long as it is there, so somebody has to see to its end.
        if lingering.len() == 1 {
            let (platform, lingering) = (self.platform.clone(), Rc::downgrade(&self.lingering));
            self.platform.spawn(end_lingering(platform, lingering));
        }
    }

    /// What a volume is promised and may not exceed.
    pub(in crate::node::real) fn slo_of(&self, id: DvolId) -> Slo {
        self.slos.borrow().get(&id).copied().unwrap_or_default()
    }

    /// What volumes of this core were promised, whatever others do.
    pub(in crate::node::real) fn floors(&self) -> Floors {
        let mut floors = Floors::new();
        for (_, owned) in self.engines.all() {
            owned.engine.visit_dvols(|handle, attributes| {
                let attributes = VolumeAttributes::decode(attributes);
                // A copy has its volume's id, and says nothing of what that is promised.
                if !matches!(attributes.receiving, Some(Receiving::Moved { .. })) {
                    note_floor(&mut floors, handle.id, owned.device, &attributes.slo);
                }
            });
        }
        floors
    }

    /// Has a volume go by another SLO from now on.
    pub(in crate::node::real) fn set_slo(&self, id: DvolId, slo: &Slo) {
        match *slo == Slo::default() {
            true => self.slos.borrow_mut().remove(&id),
            false => self.slos.borrow_mut().insert(id, *slo),
        };
        let tenant = self.tenants.borrow().get(&id).and_then(WeakTenant::upgrade);
        if let Some(tenant) = tenant {
            let (slo, limits) = terms_of(slo);
            tenant.change(slo, limits);
        }
    }

    fn metrics_of(&self, name: String, id: DvolId, counters: &VolumeCounters) -> VolumeMetrics {
        let tenant = self.tenants.borrow().get(&id).and_then(WeakTenant::upgrade);
        let promised_ns = tenant.and_then(|tenant| {
            tenant.count_used();
            tenant.promised_ns()
        });
        counters.snapshot(name, promised_ns.unwrap_or(0))
    }
}
