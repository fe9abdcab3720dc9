//! Moves that come to nothing: the volume goes on where it is.

use flagstone_device::engine::DvolError;
use flagstone_device::transfer::{DvolOrigin, Failed};
use flagstone_runtime::UringPlatform;

use super::there::There;
use super::{Job, VolumeMarks};
use crate::node::MovePoint;
use crate::node::real::core::CoreNode;

/// What came of a move that came to nothing.
#[derive(Clone, Copy)]
pub(super) struct Stayed {
    pub(super) error: DvolError,
    /// It was cut off by a stop, and the next start goes on with it.
    pub(super) goes_on: bool,
    /// Otherwise: no start goes on with it. False: one may.
    pub(super) is_written: bool,
}

impl Stayed {
    /// It is over: what came of writing that down, and of throwing its copy away. Either is enough to have no start go on with it.
    pub(super) fn when_ended(
        self,
        job: &Job,
        written: Result<(), DvolError>,
        thrown: Result<(), DvolError>,
    ) -> Stayed {
        let volume = &job.name;
        if let Err(error) = thrown {
            tracing::warn!(
                volume,
                "throwing the copy away: {error}; the next start does it"
            );
        }
        let Err(error) = written else {
            return self;
        };
        tracing::warn!(volume, "taking the mark of its move away: {error}");
        if thrown.is_ok() {
            return self;
        }
        job.watched.set_trouble(Some(format!(
            "that it was ended could not be written down ({error}): the next start may go on with it"
        )));
        Stayed {
            error,
            is_written: false,
            ..self
        }
    }

    pub(super) fn is_cancelled(&self, job: &Job) -> bool {
        let is_over = self.is_written && !self.goes_on;
        is_over && self.error == DvolError::Busy && job.watched.is_cancelled()
    }
}

impl CoreNode {
    /// The move came to nothing: the volume goes on here.
    pub(super) async fn stay(
        &self,
        job: &Job,
        origin: &DvolOrigin<UringPlatform, VolumeMarks>,
        there: &There<'_>,
        failed: Failed,
    ) -> Stayed {
        let error = match failed {
            Failed::Before(error) => error,
            Failed::Perhaps(error) => return self.stay_perhaps(job, origin, there, error).await,
        };
        let is_cut_off = self.is_cut_off(job);
        let stayed = Stayed {
            error,
            // The copy stays then. Without that mark the next start deletes it.
            goes_on: is_cut_off && origin.is_going(),
            is_written: true,
        };
        // Whether a start goes on is said here. So this comes first, and a copy that can't be deleted then is one that nobody needs.
        let written = match is_cut_off {
            true => origin.interrupt().await,
            false => origin.stay(false).await,
        };
        if written.is_err() {
            // The mark stays as it was. There is no copy that has arrived, so whatever it says the volume is here.
            origin.release();
        }
        if is_cut_off {
            if let Err(error) = written {
                tracing::warn!(volume = job.name, "marking it as being moved: {error}");
            }
            return stayed;
        }
        self.at(MovePoint::EndKept).await;
        stayed.when_ended(job, written, there.abandon().await.map(drop))
    }

    /// The same if the copy may have arrived.
    async fn stay_perhaps(
        &self,
        job: &Job,
        origin: &DvolOrigin<UringPlatform, VolumeMarks>,
        there: &There<'_>,
        error: DvolError,
    ) -> Stayed {
        let volume = &job.name;
        let stayed = Stayed {
            error,
            goes_on: false,
            is_written: true,
        };
        if let Err(error) = origin.stay(true).await {
            tracing::error!(
                volume,
                "whether it was moved can't be written down: {error}; it fails all requests until the node is \
                 restarted"
            );
            origin.close();
            return Stayed { error, ..stayed };
        }
        match there.abandon().await {
            // Nothing is left that the mark would be needed for.
            Ok(true) => {
                if let Err(error) = origin.stay(false).await {
                    tracing::warn!(volume, "taking the mark of its move away: {error}");
                }
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(
                volume,
                "throwing the copy away: {error}; the next start does it"
            ),
        }
        stayed
    }
}

#[cfg(test)]
mod tests {
    use super::super::Watched;
    use super::*;
    use crate::node::Slo;
    use crate::node::real::names::Place;

    #[test]
    fn a_cancelled_move_is_shown_as_that_only_if_no_start_goes_on_with_it() {
        let job = || {
            let place = Place {
                core: 0,
                engine: 0,
                id: flagstone_types::DvolId(1),
            };
            let watched = Watched::new(None);
            watched.cancel();
            Job {
                name: "vm".to_owned(),
                from: place,
                to: place,
                to_device: 2,
                slo: Slo::default(),
                left: None,
                watched,
            }
        };
        let busy = |goes_on| Stayed {
            error: DvolError::Busy,
            goes_on,
            is_written: true,
        };
        let failed = Err(DvolError::Fenced);
        for (written, thrown) in [(Ok(()), Ok(())), (failed, Ok(())), (Ok(()), failed)] {
            let job = job();
            let stayed = busy(false).when_ended(&job, written, thrown);
            assert!(stayed.is_cancelled(&job), "{written:?} {thrown:?}");
            assert_eq!(job.watched.trouble(), None);
        }
        let both = job();
        let stayed = busy(false).when_ended(&both, failed, failed);
        assert!(!stayed.is_cancelled(&both));
        assert_eq!(stayed.error, DvolError::Fenced);
        let trouble = both.watched.trouble().expect("is said");
        assert!(trouble.contains("the next start may go on"), "{trouble}");
        // It was cut off, and cancelled just behind that.
        assert!(!busy(true).is_cancelled(&job()));
    }
}
