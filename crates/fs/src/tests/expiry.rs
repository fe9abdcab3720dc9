//! Whose answers are kept, and for how long.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_platform::Platform;

use super::*;
use crate::answer::Answer;
use crate::attributes::Changes;
use crate::files::{ANSWERS_KEPT_SECONDS, CLIENTS_KEPT};

const HOUR_NS: u64 = 3_600_000_000_000;

impl Stage {
    /// Clients of which there are answers, and how many.
    async fn answers(&self) -> (usize, usize) {
        let answers = self.scan(self.keys().tokens(0)).await;
        let clients = self.scan(self.keys().clients()).await;
        (clients.len(), answers.len())
    }

    /// What an operation could be answered.
    async fn changes(&self) -> Changes {
        let after = self.fs.attributes(Node::live(self.fs.root())).await;
        let after = after.expect("looks");
        Changes {
            before: (&after).into(),
            after,
        }
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

/// Whoever asks in ever new names pushes out his own that called longest ago, and nobody else's.
#[test]
fn of_too_many_those_go_of_whom_there_are_most() {
    run(async |stage| {
        let elsewhere: Vec<u64> = (1..9).map(|n| Token::client_of(n % 4 + 1, n)).collect();
        let mut made = Vec::new();
        for client in &elsewhere {
            let name = format!("old-{client}");
            made.push(stage.make_by(&call(*client, 0), &name).await);
        }
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
        assert!(!(0..100).any(is_there));
        assert!((400..CLIENTS_KEPT as u64 + 300).all(is_there));
        for (client, file) in elsewhere.into_iter().zip(made) {
            assert!(is_there(client), "{client:016x}");
            assert_eq!(stage.make_by(&call(client, 0), "none").await, file);
        }
    });
}

/// What can't be read of one client keeps no others from being forgotten, and goes first.
#[test]
fn one_that_cannot_be_read_does_not_hold_up_the_others() {
    run(async |stage| {
        for client in 1..5 {
            stage.make_by(&call(client, 0), &format!("{client}")).await;
        }
        stage.put(&stage.keys().client(2), b"damage").await;
        let kept_ns = ANSWERS_KEPT_SECONDS.cast_unsigned() * 1_000_000_000;
        stage.sleep_ns(kept_ns / 2).await;
        stage.make_by(&call(3, 1), "goes on").await;
        stage.sleep_ns(1_000_000_000).await;
        let (clients, _) = stage.answers().await;
        assert_eq!(clients, 3, "that one is gone");
        stage.put(&stage.keys().client(4), b"damage").await;
        stage.sleep_ns(kept_ns / 2 + HOUR_NS).await;
        stage.make_by(&call(3, 2), "still there").await;
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.answers().await, (1, 3));
    });
}

/// While a call is under way others push what is kept of its client out of memory, and the client calls again: both
/// are kept.
#[test]
fn a_place_for_an_answer_is_not_given_twice() {
    run(async |stage| {
        let inner = stage.fs.inner.clone();
        let (began, goes_on) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (platform, begins, may) = (stage.platform.clone(), began.clone(), goes_on.clone());
        let over = Rc::new(Cell::new(false));
        let is_over = over.clone();
        let answer = Answer::Changed(stage.changes().await);
        let first = Token { client: 7, call: 1 };
        stage.platform.spawn(async move {
            let done = inner.run(async |change| {
                if inner.answer_of(first).await?.is_some() {
                    return Ok(());
                }
                inner.keep_answer(change, first, answer).await?;
                begins.set(true);
                while !may.get() {
                    platform.yield_now().await;
                }
                Ok(())
            });
            done.await.expect("is done");
            is_over.set(true);
        });
        while !began.get() {
            stage.platform.yield_now().await;
        }
        for client in 100..500 {
            stage.make_by(&call(client, 0), "same").await;
        }
        let second = stage.make_by(&call(7, 2), "second").await;
        goes_on.set(true);
        while !over.get() {
            stage.sleep_ns(1_000_000).await;
        }
        stage.reopen().await;
        assert_eq!(stage.make_by(&call(7, 2), "none").await, second);
        let kept = stage.inner().answer_of(first).await.expect("looks");
        assert_eq!(kept, Some(answer));
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
