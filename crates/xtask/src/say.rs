//! Where the words of a step go: as they are while it is the only one, else each line behind the step's name.

#[cfg(test)]
use std::sync::{Arc, Mutex, PoisonError};

/// Prints the lines of one step.
#[derive(Clone, Default)]
pub(crate) struct Say {
    /// Of a step that has others beside it.
    name: Option<String>,
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
            name: None,
            heard: Some(Arc::clone(heard)),
        }
    }

    /// Of a step beside others: its lines begin with `[name] `.
    pub(crate) fn named(&self, name: &str) -> Say {
        let mut named = self.clone();
        named.name = Some(name.to_owned());
        named
    }

    /// Whether its lines must be told from those of others.
    pub(crate) fn is_beside_others(&self) -> bool {
        self.name.is_some()
    }

    /// Prints a text, which may have several lines.
    pub(crate) fn line(&self, text: &str) {
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
}
