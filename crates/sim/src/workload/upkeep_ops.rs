//! What clients do beside data, dvols and snapshots: looking around, scrubbing, checkpoints, waiting
//! for the reaper.

use super::client::Client;
use super::model::Life;

impl Client {
    /// Compares what the engine tells about its dvols with the model.
    pub(crate) async fn look_around(&mut self) {
        let infos = self.engine.dvols();
        let mut wrong = Vec::new();
        {
            let model = self.model.borrow();
            for info in &infos {
                if self.engine.dvol_name(info.handle.id).as_ref() != Some(&info.name) {
                    wrong.push(format!("{} has two names", info.name));
                }
                let known = model.select(|o| o.of.is_none() && o.id == info.handle.id);
                let Some(&key) = known.first() else {
                    wrong.push(format!("{} is not known", info.name));
                    continue;
                };
                let object = &model.objects[key];
                let fits = object.name.may_be(&info.name)
                    && object.size.may_be(&info.size_bytes)
                    && object.reserved.may_be(&info.reserved_bytes)
                    && object.epoch.may_be(&info.epoch.0)
                    && object.read_only.may_be(&info.read_only)
                    && object.attributes.may_be(&info.attributes)
                    && object.life != Life::Gone;
                if !fits {
                    wrong.push(format!(
                        "{info:?} is not as it should be: {}",
                        object.title()
                    ));
                }
            }
            for key in model.dvols(self.journal) {
                if !infos
                    .iter()
                    .any(|info| info.handle.id == model.objects[key].id)
                {
                    wrong.push(format!("{} is not listed", model.objects[key].title()));
                }
            }
        }
        if !wrong.is_empty() && !self.has_broken() {
            self.fail(wrong.join("; "));
        }
        for info in infos {
            for layer in self.engine.layers(info.handle.id) {
                let result = self.engine.exclusive_bytes(layer.handle).await;
                self.count("exclusive_bytes", &result);
            }
        }
    }

    pub(crate) async fn scrub(&mut self) {
        let pause_ns = self.rng.below(100_000);
        let result = self.engine.scrub(pause_ns).await;
        self.count("scrub", &result);
        match result {
            Ok(report) => {
                let found_damage = !report.corrupt.is_empty() && !self.has_lost_writes();
                let could_not = report.unreadable > 0 || report.broken_maps > 0;
                if found_damage || (could_not && !self.plan.may_fail()) {
                    self.fail(format!("the scrub found damage: {report:?}"));
                }
            }
            Err(error) => drop(self.admin_error("scrub", None, error)),
        }
    }

    pub(crate) async fn checkpoint(&mut self) {
        let result = self.engine.checkpoint().await;
        self.count("checkpoint", &result);
        if let Err(error) = result {
            self.admin_error("checkpoint", None, error);
        }
    }

    /// Counts what the engine has done by itself.
    pub(crate) fn count_counters(&self) {
        for (name, value) in self.engine.counters().list() {
            if value > 0 {
                self.model.borrow_mut().count(format!("counter {name}"));
            }
        }
    }

    pub(crate) async fn wait_until_reaped(&mut self) {
        let result = self.engine.wait_until_reaped().await;
        self.count("wait_until_reaped", &result);
        if let Err(error) = result {
            self.admin_error("wait_until_reaped", None, error);
        }
    }
}
