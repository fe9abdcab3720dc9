//! Dvols that are of filesystems by what they say of themselves, and of none by what the filesystems say.

use flagstone_device::engine::{Attributes, Handle};
use flagstone_pagestore::{DvolRole, ExtentId, Geometry};
use flagstone_platform::Platform;

use super::PROBLEMS_MAX;
use crate::files::FilesystemId;
use crate::object::Said;
use crate::places::Place;
use crate::system::All;

/// Dvols looked at before others have their turn.
const AT_ONCE: usize = 512;

/// What was found of a journal's dvols.
struct Strays<'a> {
    there: &'a [FilesystemId],
    deleted: &'a [FilesystemId],
    /// Extents of the store that nobody would look for.
    unknown: Vec<ExtentId>,
    headers: u64,
    logs: u64,
    problems: Vec<String>,
}

impl Strays<'_> {
    fn say(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }

    fn see(&mut self, name: &str, handle: Handle, attributes: &Attributes) {
        match DvolRole::of(attributes) {
            Some(DvolRole::File) => self.see_file(handle, Said::decode(attributes)),
            Some(DvolRole::Extent) => match Geometry::of_attributes(attributes) {
                Ok((id, _)) if self.unknown.contains(&id) => self.say(format!(
                    "the dvol '{name}' is the extent {:#x}, which no filesystem has",
                    id.0
                )),
                Ok(_) => {}
                Err(_) => self.say(format!(
                    "what the dvol '{name}' says of its extent can't be read"
                )),
            },
            Some(DvolRole::Header) => self.headers += 1,
            Some(DvolRole::Log) => self.logs += 1,
            Some(DvolRole::Tokens | DvolRole::Moves) | None => {}
        }
    }

    fn see_file(&mut self, handle: Handle, said: Option<Said>) {
        let dvol = handle.id;
        match said {
            // Else each filesystem tells it: it may be of any of them.
            None if self.there.is_empty() => self.say(format!(
                "what the dvol {dvol} says of its file can't be read"
            )),
            None => {}
            Some(said) => {
                let of = said.filesystem;
                if !self.there.contains(&of) && !self.deleted.contains(&of) {
                    self.say(format!(
                        "the dvol {dvol} is of a file of filesystem {of}, which is not there"
                    ));
                }
            }
        }
    }

    fn end(mut self) -> Vec<String> {
        for (count, what) in [(self.headers, "page stores"), (self.logs, "logs of it")] {
            if count > 1 {
                let problem = format!("there are {count} {what} in a journal that has one");
                self.say(problem);
            }
        }
        self.problems
    }
}

impl<P: Platform> All<P> {
    /// What is wrong with the journal's dvols as a whole: each that is of filesystems is of one that is there, or is deleted and still being
    /// given back, or is a part of what all of them are stored in.
    pub(crate) async fn check_strays(
        &self,
        there: &[FilesystemId],
        deleted: &[FilesystemId],
    ) -> Vec<String> {
        let mut unknown = self.tree.store().extents();
        unknown.retain(|id| !self.has_extent(*id));
        let mut strays = Strays {
            there,
            deleted,
            unknown,
            headers: 0,
            logs: 0,
            problems: Vec::new(),
        };
        for device in self.places.missing() {
            strays.say(format!(
                "the device {device} has large files of filesystems and is not here: give all devices of the node"
            ));
        }
        for (place, engine) in self.places.all() {
            let mut last = String::new();
            loop {
                let behind = std::mem::take(&mut last);
                let visit = |name: &str, handle: Handle, attributes: &Attributes| {
                    name.clone_into(&mut last);
                    let said = self.places.said_at(place, attributes);
                    match (place, said) {
                        (Place::HOME, _) => strays.see(name, handle, attributes),
                        // What else is there isn't of these filesystems.
                        (_, Some(said)) => strays.see_file(handle, said),
                        (_, None) => {}
                    }
                };
                let count = engine.visit_dvols_behind(&behind, AT_ONCE, visit);
                if count < AT_ONCE {
                    break;
                }
                self.platform.yield_now().await;
            }
        }
        strays.end()
    }
}
