//! What calls were answered, by token.

use std::collections::{BTreeMap, VecDeque};

pub(super) use crate::answer::Answer;
use crate::files::{ANSWERS_KEPT, Caller};

/// Of each client the last ones, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    by_client: BTreeMap<u64, VecDeque<(u64, Answer)>>,
}

impl Answers {
    /// What the call was answered when it came first.
    pub(super) fn find(&self, caller: &Caller) -> Option<Answer> {
        let token = caller.token?;
        let kept = self.by_client.get(&token.client)?;
        let found = kept.iter().find(|(call, _)| *call == token.call);
        found.map(|(_, answer)| *answer)
    }

    pub(super) fn keep(&mut self, caller: &Caller, answer: Answer) {
        let Some(token) = caller.token else {
            return;
        };
        let kept = self.by_client.entry(token.client).or_default();
        if kept.len() == ANSWERS_KEPT {
            kept.pop_front();
        }
        kept.push_back((token.call, answer));
    }
}
