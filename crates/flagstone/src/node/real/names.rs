//! Which volume is where: the one place for volumes' names on a node.
//!
//! Filled from the devices at start, changed by the control side only, asked by gateways when a
//! client connects. Never touched on the data path.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use flagstone_types::DvolId;

/// Where a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The core that owns it.
    pub(super) core: usize,
    /// The engine on that core.
    pub(super) engine: usize,
    /// Its dvol. Zero while it is being created.
    pub(super) id: DvolId,
}

#[derive(Default)]
struct Tables {
    by_name: BTreeMap<String, Place>,
    by_id: BTreeMap<DvolId, String>,
}

/// All volumes of a node by name.
#[derive(Clone, Default)]
pub(super) struct Names {
    tables: Arc<RwLock<Tables>>,
}

impl Names {
    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.tables.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where `name` is, if it exists and is not just being created.
    pub(super) fn find(&self, name: &str) -> Option<Place> {
        self.read(|t| t.by_name.get(name).copied())
            .filter(|place| place.id != DvolId(0))
    }

    /// The name of the volume with this dvol.
    pub(super) fn name_of(&self, id: DvolId) -> Option<String> {
        self.read(|t| t.by_id.get(&id).cloned())
    }

    /// Puts a name in. False if it is taken.
    pub(super) fn insert(&self, name: &str, place: Place) -> bool {
        self.write(|t| {
            if t.by_name.contains_key(name) {
                return false;
            }
            t.by_name.insert(name.to_owned(), place);
            if place.id != DvolId(0) {
                t.by_id.insert(place.id, name.to_owned());
            }
            true
        })
    }

    /// Says which dvol a name that was put in has got.
    pub(super) fn settle(&self, name: &str, id: DvolId) {
        self.write(|t| {
            if let Some(place) = t.by_name.get_mut(name) {
                place.id = id;
                t.by_id.insert(id, name.to_owned());
            }
        });
    }

    /// Takes a name out.
    pub(super) fn remove(&self, name: &str) {
        self.write(|t| {
            if let Some(place) = t.by_name.remove(name)
                && t.by_id.get(&place.id).is_some_and(|n| n == name)
            {
                t.by_id.remove(&place.id);
            }
        });
    }

    /// Up to `limit` names behind `after` that begin with `prefix`.
    pub(super) fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Place)> {
        use std::ops::Bound;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.read(|t| {
            t.by_name
                .range::<str, _>((from, Bound::Unbounded))
                .take_while(|(name, _)| name.starts_with(prefix))
                .filter(|(_, place)| place.id != DvolId(0))
                .take(limit)
                .map(|(name, place)| (name.clone(), *place))
                .collect()
        })
    }

    /// Number of volumes per core.
    pub(super) fn per_core(&self, cores: usize) -> Vec<u64> {
        self.read(|t| {
            let mut counts = vec![0; cores];
            for place in t.by_name.values() {
                if let Some(count) = counts.get_mut(place.core) {
                    *count += 1;
                }
            }
            counts
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: u128) -> Place {
        Place {
            core: 0,
            engine: 0,
            id: DvolId(id),
        }
    }

    #[test]
    fn a_name_under_construction_is_taken_but_not_found() {
        let names = Names::default();
        assert!(names.insert("a", place(0)));
        assert!(!names.insert("a", place(1)));
        assert_eq!(names.find("a"), None);
        names.settle("a", DvolId(7));
        assert_eq!(names.find("a"), Some(place(7)));
        assert_eq!(names.name_of(DvolId(7)).as_deref(), Some("a"));
        names.remove("a");
        assert_eq!(names.name_of(DvolId(7)), None);
    }

    #[test]
    fn pages_follow_each_other() {
        let names = Names::default();
        for (index, name) in ["a", "b1", "b2", "b3", "c"].into_iter().enumerate() {
            names.insert(name, place(index as u128 + 1));
        }
        let page = |prefix: &str, after: Option<&str>, limit| {
            let page = names.page(prefix, after, limit);
            page.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(page("", None, 2), ["a", "b1"]);
        assert_eq!(page("", Some("b1"), 9), ["b2", "b3", "c"]);
        assert_eq!(page("b", None, 2), ["b1", "b2"]);
        assert_eq!(page("b", Some("b2"), 2), ["b3"]);
        assert_eq!(page("b", Some("a"), 1), ["b1"]);
    }
}
