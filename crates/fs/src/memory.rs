//! A filesystem in memory: what [`crate::Files`] promises, as simply as it can be said. Tests compare with it.
