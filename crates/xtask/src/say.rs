//! Where the words of a step go: as they are while it is the only one, else each line behind the step's name. The last of
//! them are kept, to be said again in the end of a run in which that step failed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// How many of a step's lines are kept. What went wrong is said last, with what led to it before.
const KEPT_MAX: usize = 40;

/// Prints the lines of one step.
#[derive(Clone, Default)]
pub(crate) struct Say {
    /// Of a step that has others beside it.
    name: Option<String>,
    /// The step's last lines.
    kept: Option<Arc<Mutex<VecDeque<String>>>>,
    /// Where a test reads what else would be printed.
    #[cfg(test)]
    heard: Option<Heard>,
}

#[cfg(test)]
pub(crate) type Heard = Arc<Mutex<Vec<String>>>;

impl Say {
    /// Of who is alone: lines are printed as they are.
    pub(crate) fn plain() -> Say {
        Say::default()
    }

    /// The same for a test, which finds the lines in `heard`.
    #[cfg(test)]
    pub(crate) fn heard(heard: &Heard) -> Say {
        Say {
            heard: Some(Arc::clone(heard)),
            ..Say::default()
        }
    }

    /// Of a step beside others: its lines begin with `[name] `.
    pub(crate) fn named(&self, name: &str) -> Say {
        let mut named = self.clone();
        named.name = Some(name.to_owned());
        named
    }

    /// The same, whose last lines are kept from here on.
    pub(crate) fn keeping(&self) -> Say {
        let mut keeping = self.clone();
        keeping.kept = Some(Arc::default());
        keeping
    }

    /// The last lines that were said, without the step's name.
    pub(crate) fn kept(&self) -> Vec<String> {
        let Some(kept) = &self.kept else {
            return Vec::new();
        };
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().cloned().collect()
    }

    /// Whether its lines must be told from those of others.
    pub(crate) fn is_beside_others(&self) -> bool {
        self.name.is_some()
    }

    /// Prints a text, which may have several lines.
    pub(crate) fn line(&self, text: &str) {
        self.keep(text);
        let text = match &self.name {
            Some(name) => prefixed(name, text),
            None => text.to_owned(),
        };
        #[cfg(test)]
        if let Some(heard) = &self.heard {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.extend(text.split('\n').map(str::to_owned));
            return;
        }
        // All of it at once: nobody else's lines come in between.
        println!("{text}");
    }

    fn keep(&self, text: &str) {
        let Some(kept) = &self.kept else {
            return;
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        for line in text.split('\n') {
            if kept.len() == KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back(line.to_owned());
        }
    }
}

fn prefixed(name: &str, text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| format!("[{name}] {line}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_step_beside_others_has_its_name() {
        let heard = Heard::default();
        let alone = Say::heard(&heard);
        let beside = alone.named("sim, seeds");
        alone.line("as it is");
        beside.line("one\n\ntwo");
        assert!(beside.is_beside_others() && !alone.is_beside_others());
        let heard = heard.lock().expect("nobody panicked");
        let expected = [
            "as it is",
            "[sim, seeds] one",
            "[sim, seeds] ",
            "[sim, seeds] two",
        ];
        assert_eq!(*heard, expected);
    }

    #[test]
    fn of_a_step_that_says_much_the_last_lines_are_kept() {
        let heard = Heard::default();
        let quiet = Say::heard(&heard);
        let one = quiet.named("one").keeping();
        let other = quiet.named("other").keeping();
        for line in 0..KEPT_MAX {
            one.line(&format!("line {line}"));
        }
        one.line("next to last\nlast");
        other.line("mine");
        let kept = one.kept();
        assert_eq!(kept.len(), KEPT_MAX);
        assert_eq!(kept[0], "line 2");
        assert_eq!(kept[KEPT_MAX - 2..], ["next to last", "last"]);
        assert_eq!(other.kept(), ["mine"]);
        assert!(quiet.kept().is_empty());
    }
}
