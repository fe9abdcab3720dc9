//! Waiting on a client's terms: for a turn at the device, and for the right to change a volume. Both end when its patience does.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use flagstone_device::transfer::Entered;
use flagstone_gateway::native::volume::{NativeError, Terms};
use flagstone_platform::Platform;
use flagstone_runtime::UringPlatform;
use flagstone_sched::{Turn, Want};
use flagstone_types::Epoch;

use crate::node::real::volume::{Admitted, RealVolume, TurnHere};

impl RealVolume {
    /// Waits for a turn on these terms, at a volume that is still here then.
    pub(super) async fn turn_on(
        &self,
        want: Want,
        terms: &Terms,
    ) -> Result<TurnHere<'_>, NativeError> {
        loop {
            let turn = self.turn_anyway(want, terms).await?;
            match self.try_enter() {
                Ok(Some(served)) => return Ok(TurnHere::new(turn, served)),
                undecided => {
                    turn.give_back();
                    undecided.map_err(|_| self.went())?;
                    self.in_time(self.decided(), terms).await?;
                }
            }
        }
    }

    /// That it is served here as long as this is kept. Waits while its journal goes to another core; `Busy` while it isn't known whether it is another
    /// node's.
    pub(super) async fn served(&self, terms: &Terms) -> Result<Entered<'_>, NativeError> {
        loop {
            match self.try_enter() {
                Ok(Some(served)) => return Ok(served),
                // That can take as long as another node is away.
                Ok(None) if self.notes.reads.is_shut() => return Err(NativeError::Busy),
                Ok(None) => self.in_time(self.decided(), terms).await?,
                Err(_) => return Err(self.went()),
            }
        }
    }

    /// That it is here, and nowhere else.
    pub(super) fn check_readable(&self) -> Result<(), NativeError> {
        self.check_here()?;
        match self.notes.reads.is_shut() {
            true => Err(NativeError::Busy),
            false => Ok(()),
        }
    }

    /// That it has not gone elsewhere.
    pub(super) fn check_here(&self) -> Result<(), NativeError> {
        match self.is_gone() {
            true => Err(self.went()),
            false => Ok(()),
        }
    }

    async fn turn_anyway(
        &self,
        want: Want,
        terms: &Terms,
    ) -> Result<Turn<UringPlatform>, NativeError> {
        let mut turn = pin!(self.tenant.turn(want));
        // Most get it at once, and look at no clock.
        let at_once = poll_fn(|cx| Poll::Ready(turn.as_mut().poll(cx))).await;
        if let Poll::Ready(turn) = at_once {
            return Ok(turn);
        }
        match self.in_time(turn, terms).await? {
            turn if !terms.is_late(self.platform.now()) => Ok(turn),
            turn => {
                turn.give_back();
                Err(NativeError::Late)
            }
        }
    }

    /// Waits for something for as long as these terms have patience, and somebody is there to hear of it.
    pub(super) async fn in_time<T>(
        &self,
        what: impl Future<Output = T>,
        terms: &Terms,
    ) -> Result<T, NativeError> {
        let began = self.platform.now();
        let mut what = pin!(what);
        let mut late = pin!(async {
            match terms.until {
                Some(until) => self.platform.sleep_until(until).await,
                None => std::future::pending().await,
            }
        });
        let came = poll_fn(|cx| {
            // Before anything else: where one is given up those behind it may have their turns at once, and would be made without it.
            if terms.has_left() {
                return Poll::Ready(None);
            }
            match what.as_mut().poll(cx) {
                Poll::Ready(came) => Poll::Ready(Some(came)),
                Poll::Pending => late.as_mut().poll(cx).map(|()| None),
            }
        })
        .await;
        terms.note_waited(self.platform.now().since(began));
        came.ok_or(NativeError::Late)
    }

    /// A turn to change it by, and the right to, for a writer of this epoch.
    pub(super) async fn turn_to_change_on(
        &self,
        want: Want,
        terms: &Terms,
        epoch: Epoch,
    ) -> Result<(TurnHere<'_>, Admitted<'_>), NativeError> {
        loop {
            let turn = self.turn_on(want, terms).await?;
            match self.admit_as(epoch) {
                Ok(Some(admitted)) => return Ok((turn, admitted)),
                // Whoever holds it may need a turn to come to the end of that.
                Ok(None) => {
                    turn.give_back();
                    self.in_time(self.notes.gate.opened(), terms).await?;
                }
                Err(error) => {
                    turn.give_back();
                    return Err(error);
                }
            }
        }
    }

    /// Begins a change by a writer of this epoch, unless changes are held just now.
    pub(super) fn admit_as(&self, epoch: Epoch) -> Result<Option<Admitted<'_>>, NativeError> {
        let entered = self.notes.gate.try_enter();
        let Some(entered) = entered.map_err(|_| self.went())? else {
            return Ok(None);
        };
        let passed = self.enter_as(epoch)?;
        Ok(Some(Admitted::new(passed, entered)))
    }
}
