//! A progress bar on standard error for what takes longer than a second. Shows nothing if that is
//! not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts bytes. Disappears when dropped.
pub(super) struct Bar {
    bar: ProgressBar,
    waits: bool,
}

/// What is shown of bytes, and the same where nothing is known of the time left.
const BYTES: &str = "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {eta} left";
const BYTES_WAITING: &str = "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}";

impl Bar {
    /// A bar for the operation `what`.
    pub(super) fn new(what: &str) -> Bar {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template(BYTES)
            .expect("the template is a constant that a test renders");
        bar.set_style(style);
        bar.set_message(what.to_string());
        Bar { bar, waits: false }
    }

    /// A bar that counts steps which take equally long.
    pub(super) fn of_steps(what: &str) -> Bar {
        let bar = Bar::new(what);
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len}, {eta} left")
            .expect("the template is a constant that a test renders");
        bar.bar.set_style(style);
        bar
    }

    /// Says what it is about.
    pub(super) fn name(&mut self, what: &str) {
        self.bar.set_message(what.to_string());
    }

    /// Of bytes: whether it waits now, so that no time can be told. Behind that the time is reckoned anew.
    pub(super) fn wait(&mut self, waits: bool) {
        if std::mem::replace(&mut self.waits, waits) == waits {
            return;
        }
        let template = if waits { BYTES_WAITING } else { BYTES };
        let style = ProgressStyle::with_template(template)
            .expect("the template is a constant that a test renders");
        self.bar.set_style(style);
        self.bar.reset_eta();
    }

    /// Shows how far it is.
    pub(super) fn show(&mut self, done: u64, total: u64) {
        self.bar.set_length(total.max(done));
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_is_valid() {
        let mut bar = super::Bar::new("test");
        bar.show(1, 2);
        bar.wait(true);
        bar.show(1, 2);
        bar.wait(false);
        super::Bar::of_steps("test").show(1, 2);
    }
}
