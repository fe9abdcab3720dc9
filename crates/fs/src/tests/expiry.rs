//! Whose answers are kept, and for how long.

use super::*;
use crate::files::{ANSWERS_KEPT_SECONDS, CLIENTS_KEPT};

const HOUR_NS: u64 = 3_600_000_000_000;

impl Stage {
    /// Clients of which there are answers, and how many.
    async fn answers(&self) -> (usize, usize) {
        let answers = self.scan(self.keys().tokens(0)).await;
        let clients = self.scan(self.keys().clients()).await;
        (clients.len(), answers.len())
    }
}

/// A part of how long answers are kept; it is looked at every hour.
const STEP_NS: u64 = ANSWERS_KEPT_SECONDS.cast_unsigned() * 1_000_000_000 / 24;

/// So long after its last call a client is forgotten; one that goes on isn't, nor is what it was answered.
#[test]
fn who_does_not_call_is_forgotten() {
    run(async |stage| {
        for n in 0..40 {
            stage.make_by(&call(1, n), &format!("by-1-{n}")).await;
        }
        let first = stage.make_by(&call(2, 0), "by-2").await;
        stage.sleep_ns(STEP_NS / 2).await;
        assert_eq!(stage.answers().await, (2, 41));
        for step in 0..25 {
            stage
                .make_by(&call(2, 1 + step), &format!("step-{step}"))
                .await;
            stage.sleep_ns(STEP_NS).await;
            let expected = if step < 24 { 2 } else { 1 };
            if step < 23 || step == 24 {
                assert_eq!(stage.answers().await.0, expected, "step {step}");
            }
        }
        assert_eq!(stage.answers().await, (1, 26));
        let by = Caller::default();
        let removed = stage.fs.remove(&by, Node::live(stage.fs.root()), b"by-2");
        removed.await.expect("removes");
        assert_eq!(stage.make_by(&call(2, 0), "by-2").await, first);
        // Who comes back begins anew.
        stage.make_by(&call(1, 0), "back").await;
        assert_eq!(stage.answers().await, (2, 27));
    });
}

/// Whoever asks in ever new names pushes out who called longest ago, and nobody else.
#[test]
fn of_too_many_those_go_that_called_longest_ago() {
    run(async |stage| {
        stage.make_by(&call(u64::MAX, 0), "old").await;
        stage.sleep_ns(1_000_000_000).await;
        for n in 0..CLIENTS_KEPT as u64 + 300 {
            stage.make_by(&call(n, 0), "same").await;
            if n == 200 {
                stage.sleep_ns(1_000_000_000).await;
            }
        }
        stage.sleep_ns(1_000_000_000).await;
        let (clients, answers) = stage.answers().await;
        assert_eq!(clients, answers);
        assert!(
            (CLIENTS_KEPT..CLIENTS_KEPT + 64).contains(&clients),
            "{clients}"
        );
        let client = |n: u64| stage.keys().client(n);
        let (from, to) = stage.keys().clients();
        let found = stage.scan((from, to)).await;
        let is_there = |n: u64| found.iter().any(|(key, _)| *key == client(n));
        assert!(!is_there(u64::MAX));
        assert!((400..CLIENTS_KEPT as u64 + 300).all(is_there));
    });
}

/// A filesystem of a time when clients were not noted.
#[test]
fn clients_of_an_older_version_are_noted_when_it_is_opened() {
    run(async |stage| {
        for client in 0..40 {
            stage.make_by(&call(client * 7, 0), "a").await;
            stage.make_by(&call(client * 7, 1), "b").await;
        }
        for (key, _) in stage.scan(stage.keys().clients()).await {
            stage.delete(&key).await;
        }
        stage.delete(&stage.keys().has_clients()).await;
        assert_eq!(stage.answers().await, (0, 80));
        stage.check().await;
        stage.reopen().await;
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.answers().await, (40, 80));
        let report = stage.fs.check().await.expect("can be looked at");
        assert_eq!((report.clients, report.problems), (40, vec![]));
        // From then on they are forgotten like others.
        let kept_ns = ANSWERS_KEPT_SECONDS.cast_unsigned() * 1_000_000_000;
        stage.sleep_ns(kept_ns + HOUR_NS).await;
        let (by, top) = (call(1, 1), Node::live(stage.fs.root()));
        let removed = stage.fs.remove(&by, top, b"a").await;
        removed.expect("removes");
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.answers().await, (1, 1));
    });
}

/// While its answers go, a client calls again: what it is answered from then on is kept.
#[test]
fn who_calls_meanwhile_is_not_forgotten() {
    run(async |stage| {
        for n in 0..200 {
            stage.make_by(&call(1, n), &format!("{n}")).await;
        }
        let kept_ns = ANSWERS_KEPT_SECONDS.cast_unsigned() * 1_000_000_000;
        stage.sleep_ns(kept_ns + HOUR_NS).await;
        // It is noted that it calls with the first: whatever is under way ends then.
        let by = call(2, 0);
        stage.make_by(&by, "other").await;
        let mut made = Vec::new();
        for n in 200..230 {
            made.push(stage.make_by(&call(1, n), &format!("{n}")).await);
        }
        stage.sleep_ns(1_000_000_000).await;
        for (n, file) in (200..).zip(made) {
            assert_eq!(stage.make_by(&call(1, n), "none").await, file);
        }
    });
}
