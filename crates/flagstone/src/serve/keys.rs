//! The keys of the API that a node starts with.

use std::path::Path;

use crate::api::{Authentication, Keys, MetricsAccess};
use crate::api_key::{KeyUse, MadeKey, load_or_make};
use crate::config::ApiConfig;
use crate::node::NodeError;

/// Keys that were made for a node. They go again unless it starts.
#[derive(Default)]
pub(super) struct NewKeys(Vec<MadeKey>);

impl NewKeys {
    /// The node has started.
    pub(super) fn keep(self) {
        self.0.into_iter().for_each(MadeKey::keep);
    }
}

/// Reads the keys that the API asks for, and makes those that aren't there. Only for who has the lock of `dir`.
/// Fails if one is there that can't be trusted.
pub(super) fn prepare(dir: &Path, config: &ApiConfig) -> Result<(Keys, NewKeys), NodeError> {
    let (mut keys, mut made) = (Keys::default(), NewKeys::default());
    if config.authentication == Authentication::None {
        return Ok((keys, made));
    }
    let mut take = |key_use| {
        let (held, new) = load_or_make(dir, key_use)?;
        made.0.extend(new);
        Ok(Some(held))
    };
    keys.api = take(KeyUse::Api)?;
    if config.metrics == MetricsAccess::Key {
        keys.metrics = take(KeyUse::Metrics)?;
    }
    Ok((keys, made))
}
