//! The checker: visits every state that some order of events can reach, breadth first, so the
//! first state that breaks a property has a shortest trace.
//!
//! A state is remembered by a 128-bit hash only. Two different states with one hash would hide a
//! part of the space; among the tens of millions of states of the largest configurations the
//! chance of any such pair is below 10^-23.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::bug::Bug;
use crate::config::Config;
use crate::properties::Property;
use crate::state::State;
use crate::step::Step;

/// The rules, with or without a planted bug, under the bounds of one configuration.
pub struct Model {
    pub(crate) config: Config,
    pub(crate) bug: Option<Bug>,
}

/// Rules that can be explored: states, what can happen in each, and what must hold.
pub(crate) trait Rules {
    type State: Hash;
    type Step: Copy;
    type Property: fmt::Display;

    fn first_state(&self) -> Self::State;
    /// The property that a state breaks, and what exactly is wrong.
    fn judge(&self, state: &Self::State) -> Option<(Self::Property, String)>;
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;
    /// What is the same in all states in which [`Rules::steps_once`] would do the same.
    fn print_once(&self, _: &Self::State) -> Option<u128> {
        None
    }
    /// Further steps, tried in one state of each print.
    fn steps_once(&self, _: &Self::State) -> Vec<Self::Step> {
        Vec::new()
    }
    fn apply_step(&self, state: &Self::State, step: Self::Step) -> Self::State;
    fn describe(&self, state: &Self::State, step: Self::Step, next: &Self::State) -> String;
}

/// What an exploration found.
pub struct Outcome<P = Property> {
    /// Different states seen.
    pub states: usize,
    /// Steps tried, which is to say pairs of states.
    pub transitions: usize,
    /// Steps on the longest of the shortest ways to a state.
    pub depth: usize,
    /// False if the limit on states stopped it.
    pub complete: bool,
    /// The shortest way to a broken property.
    pub counterexample: Option<Counterexample<P>>,
}

/// A shortest way to a broken property.
pub struct Counterexample<P = Property> {
    /// The property.
    pub property: P,
    /// What exactly is wrong in the last state.
    pub detail: String,
    /// The steps, in words.
    pub steps: Vec<String>,
}

/// How a state was first reached.
struct Origin<S> {
    from: u32,
    /// None: it is the first.
    step: Option<S>,
    depth: u32,
}

impl Model {
    /// The rules under these bounds, with a bug planted or not.
    pub fn new(config: Config, bug: Option<Bug>) -> Model {
        Model { config, bug }
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Explores until everything is seen, a property is broken, or `states_max` is reached.
    pub fn explore(&self, states_max: usize) -> Outcome {
        explore(self, states_max)
    }
}

impl Rules for Model {
    type State = State;
    type Step = Step;
    type Property = Property;

    fn first_state(&self) -> State {
        Model::first_state(self)
    }

    fn judge(&self, state: &State) -> Option<(Property, String)> {
        Model::judge(self, state)
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        Model::steps(self, state)
    }

    /// Crashes: once for all states in which one has the same outcomes.
    fn print_once(&self, state: &State) -> Option<u128> {
        let mut crash = Mix::default();
        state.hash_for_crash(self.config.kills, &mut crash);
        Some(crash.both())
    }

    fn steps_once(&self, state: &State) -> Vec<Step> {
        self.crash_steps(state)
    }

    fn apply_step(&self, state: &State, step: Step) -> State {
        Model::apply_step(self, state, step)
    }

    fn describe(&self, state: &State, step: Step, next: &State) -> String {
        Model::describe(self, state, step, next)
    }
}

/// Explores until everything is seen, a property is broken, or `states_max` is reached.
pub(crate) fn explore<R: Rules>(rules: &R, states_max: usize) -> Outcome<R::Property> {
    let first = rules.first_state();
    let (mut seen, mut crashed) = (Seen::new(), Seen::new());
    seen.insert(fingerprint(&first));
    let mut origins = vec![Origin {
        from: 0,
        step: None,
        depth: 0,
    }];
    let mut queue = VecDeque::from([(0u32, first)]);
    let (mut transitions, mut depth) = (0, 0);
    while let Some((index, state)) = queue.pop_front() {
        depth = origins[index as usize].depth;
        if let Some((property, detail)) = rules.judge(&state) {
            let steps = trace(rules, &origins, index);
            let counterexample = Some(Counterexample {
                property,
                detail,
                steps,
            });
            let (states, depth) = (origins.len(), depth as usize);
            return Outcome {
                states,
                transitions,
                depth,
                complete: false,
                counterexample,
            };
        }
        let mut steps = rules.steps(&state);
        if rules
            .print_once(&state)
            .is_some_and(|print| crashed.insert(print))
        {
            steps.extend(rules.steps_once(&state));
        }
        for step in steps {
            transitions += 1;
            let next = rules.apply_step(&state, step);
            if seen.insert(fingerprint(&next)) {
                queue.push_back((origins.len() as u32, next));
                origins.push(Origin {
                    from: index,
                    step: Some(step),
                    depth: depth + 1,
                });
            }
        }
        if origins.len() > states_max {
            break;
        }
    }
    let (states, depth, complete) = (origins.len(), depth as usize, queue.is_empty());
    Outcome {
        states,
        transitions,
        depth,
        complete,
        counterexample: None,
    }
}

/// The steps to a state, in words; taken again from the start, since states aren't kept.
fn trace<R: Rules>(rules: &R, origins: &[Origin<R::Step>], mut index: u32) -> Vec<String> {
    let mut steps = Vec::new();
    while index != 0 {
        steps.extend(origins[index as usize].step);
        index = origins[index as usize].from;
    }
    let mut state = rules.first_state();
    let mut words = Vec::new();
    for step in steps.into_iter().rev() {
        let next = rules.apply_step(&state, step);
        words.push(rules.describe(&state, step, &next));
        state = next;
    }
    words
}

fn fingerprint(state: &impl Hash) -> u128 {
    let mut mix = Mix::default();
    state.hash(&mut mix);
    mix.both()
}

/// Two independent multiply-and-rotate hashes side by side; the same on every run.
pub(crate) struct Mix(u64, u64);

impl Default for Mix {
    fn default() -> Mix {
        Mix(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

impl Mix {
    fn both(&self) -> u128 {
        u128::from(scramble(self.0)) << 64 | u128::from(scramble(self.1))
    }
}

/// The finaliser of splitmix64: every bit of the input moves every bit of the output.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        scramble(self.0)
    }
}

/// A set of fingerprints, with open addressing. (The standard one takes its order from random
/// state, which the workspace forbids.)
struct Seen {
    slots: Vec<u128>,
    len: usize,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            slots: vec![0; 1 << 12],
            len: 0,
        }
    }

    /// True if it was not there yet.
    fn insert(&mut self, print: u128) -> bool {
        if self.len * 2 > self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = vec![0; old.len() * 2];
            for print in old.into_iter().filter(|&print| print != 0) {
                let free = self.find(print);
                self.slots[free] = print;
            }
        }
        let index = self.find(print);
        let new = self.slots[index] == 0;
        if new {
            self.slots[index] = print;
            self.len += 1;
        }
        new
    }

    fn find(&self, print: u128) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = (print as usize) & mask;
        while self.slots[index] != 0 && self.slots[index] != print {
            index = (index + 1) & mask;
        }
        index
    }
}
