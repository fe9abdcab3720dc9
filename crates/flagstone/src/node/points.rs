//! What tests of moves, between nodes and between cores, and of striped volumes do to a node: points at which it comes to a stop, and limits that can be reached.

use std::fmt;
use std::sync::Arc;

/// A step of a volume's way to another node that was just made, on the side that makes it, in the order in which they come; or of a journal's way to another
/// core; or between what the members of a striped volume do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MovePoint {
    /// There, it is written down that the volume comes, and there is nothing of it.
    ComingKept,
    /// There, the volume was announced.
    Begun,
    /// Some of its bytes have come there, and are not answered.
    Taken,
    /// A start goes on with its move, and has done nothing of it. Where this says `false`, what was being changed of the volume before can't be waited for, and
    /// the move fails.
    GoesOn,
    /// Here, some of it was read to be copied.
    Copied,
    /// It is written down here that it is being copied, and there not yet how far that is.
    GoingKept,
    /// Within the node, it is written down here that its move was ended, and its copy is still there.
    EndKept,
    /// It is written down there how far the copy is.
    PointKept,
    /// It is written down here where it goes.
    RouteKept,
    /// Its changes are held, and it is marked as leaving.
    Held,
    /// Its reads are held, and the other node is asked to make it its own.
    Finishing,
    /// There, its tokens are written down, and not that it has come.
    TokensKept,
    /// There, it is written down that it has come, once it isn't marked any more.
    ArrivalKept,
    /// It has come there, which isn't answered.
    Arrived,
    /// It is known here that it has come there, and not written down.
    Heard,
    /// It is written down here that it is there, and nobody was told.
    GoneKept,
    /// What it was here is deleted.
    Deleted,
    /// There, it was heard that nobody will ask any more, which isn't written down.
    Confirming,
    /// It is, and isn't answered.
    Confirmed,
    /// It is known here that the other node knows, and not written down.
    ConfirmHeard,
    /// It is written down that it stays by somebody's word, and nothing else was done.
    ForcedKept,
    /// There, it is written down that it may be deleted by somebody's word; and still that it waits to be confirmed.
    SettledKept,
    /// A journal goes to another core of this node: its clients wait from here on.
    JournalHeld,
    /// It is closed, and the other core is to open it.
    JournalClosed,
    /// That core could not, and this one is to open it again.
    JournalRefused,
    /// The members of a new striped volume are there, and the volume isn't.
    StripeMade,
    /// A striped volume is deleted, and its members aren't.
    StripeDeleted,
    /// Its members have grown, and it hasn't.
    StripeGrown,
    /// It has become smaller, and its members haven't.
    StripeShrunk,
    /// Its members have a snapshot that it doesn't have.
    StripeSnapped,
    /// Its snapshot is deleted, and those of its members aren't.
    StripeUnsnapped,
    /// It is written down that it is being rolled back, and nothing else was done.
    StripeRolling,
    /// A member is rolled back, and has as much reserved as before. Where this says `false`, that stays so, and the rollback goes on.
    StripeMemberRolled,
    /// Its other members are rolled back, and it isn't.
    StripeRolled,
}

/// Who is asked at each point whether this goes on.
type Asked = dyn Fn(MovePoint) -> bool + Send + Sync;

/// For tests of moves: where they come to a stop, and limits that can be reached. A node that isn't tested has none of it.
#[derive(Clone, Default)]
pub struct MoveHooks {
    goes_on: Option<Arc<Asked>>,
    /// How long an arrival stays that nobody asks for, in nanoseconds.
    pub silence_ns: Option<u64>,
    /// The same once something of it has come.
    pub kept_ns: Option<u64>,
    /// For how many volumes of a journal that went clients are sent on.
    pub routes_max: Option<usize>,
    /// Connections that wait at a core to go to one that is too busy.
    pub hand_overs_max: Option<u32>,
    /// Bytes that a move copies until it writes down how far it is.
    pub point_after_bytes: Option<u64>,
}

impl MoveHooks {
    /// Asks this at each point, on the core that is there. What is at a point for which it says `false` never goes on.
    pub fn at_points(goes_on: impl Fn(MovePoint) -> bool + Send + Sync + 'static) -> MoveHooks {
        MoveHooks {
            goes_on: Some(Arc::new(goes_on)),
            ..MoveHooks::default()
        }
    }

    /// Whether what is there goes on.
    pub fn goes_on(&self, point: MovePoint) -> bool {
        self.goes_on.as_ref().is_none_or(|goes_on| goes_on(point))
    }
}

impl fmt::Debug for MoveHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoveHooks")
            .field("stops", &self.goes_on.is_some())
            .field("silence_ns", &self.silence_ns)
            .field("kept_ns", &self.kept_ns)
            .field("routes_max", &self.routes_max)
            .field("hand_overs_max", &self.hand_overs_max)
            .field("point_after_bytes", &self.point_after_bytes)
            .finish()
    }
}

/// The same if they ask the same.
impl PartialEq for MoveHooks {
    fn eq(&self, other: &MoveHooks) -> bool {
        let asks_the_same = match (&self.goes_on, &other.goes_on) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let limits = |hooks: &MoveHooks| {
            let silence = (hooks.silence_ns, hooks.kept_ns);
            let most = (hooks.routes_max, hooks.hand_overs_max);
            (silence, most, hooks.point_after_bytes)
        };
        asks_the_same && limits(self) == limits(other)
    }
}

impl Eq for MoveHooks {}
