//! How much of the audit log refusals may take.
//!
//! Whoever may connect may be refused, without any key and as often as he likes; a log has an end. So there are so many lines within a second, and the next
//! line says how many were left out. Clients of volumes have a bound for each address, so that one of them takes no lines from others, and one for all.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use flagstone_platform::Time;

/// Within which lines are counted.
const WITHIN_NS: u64 = 1_000_000_000;

/// Lines of one address, or of the API, within that time.
pub(crate) const LINES_MAX: usize = 10;

/// Lines of all addresses together.
const ALL_LINES_MAX: usize = 50;

/// Addresses that are known at a time.
const SOURCES_MAX: usize = 64;

/// Bits of an IPv6 address that count as one: who has one mostly has all those with the same.
const NETWORK_BITS: u32 = 64;

/// At most so many lines within any second.
#[derive(Debug)]
pub(crate) struct Lines {
    max: usize,
    /// When the last ones were.
    written: VecDeque<Time>,
    /// How many were left out since the last one.
    left_out: u64,
}

impl Lines {
    pub(crate) fn new(max: usize) -> Lines {
        Lines {
            max,
            written: VecDeque::new(),
            left_out: 0,
        }
    }

    /// Whether a line may be written, and how many have been left out before it.
    pub(crate) fn line(&mut self, now: Time) -> Option<u64> {
        if self.has_room(now) {
            return Some(self.write(now));
        }
        self.left_out += 1;
        None
    }

    fn has_room(&self, now: Time) -> bool {
        let oldest = self.written.front();
        self.written.len() < self.max || oldest.is_none_or(|oldest| now.since(*oldest) >= WITHIN_NS)
    }

    fn write(&mut self, now: Time) -> u64 {
        if self.written.len() == self.max {
            self.written.pop_front();
        }
        self.written.push_back(now);
        std::mem::take(&mut self.left_out)
    }
}

/// What has no line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct LeftOut {
    /// Of the same address, since its last line.
    pub(crate) same: u64,
    /// Of others, which are not known any more, since anybody's last line.
    pub(crate) others: u64,
}

impl LeftOut {
    /// As a line has it: nothing where there is nothing to say.
    pub(crate) fn told(self) -> (Option<u64>, Option<u64>) {
        let told = |lines: u64| Some(lines).filter(|&lines| lines > 0);
        (told(self.same), told(self.others))
    }
}

struct Source {
    lines: Lines,
    /// When it was refused last.
    seen: Time,
}

/// Which refusals of clients are written.
pub(crate) struct Refusals {
    all: Lines,
    /// By address; those without one, of Unix sockets, count as one.
    sources: BTreeMap<Option<IpAddr>, Source>,
    /// What was left out of addresses that had to make room for others.
    forgotten: u64,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals {
            all: Lines::new(ALL_LINES_MAX),
            sources: BTreeMap::new(),
            forgotten: 0,
        }
    }
}

impl Refusals {
    /// Whether the refusal of somebody from there may be a line, and what was left out before it.
    pub(crate) fn line(&mut self, from: Option<IpAddr>, now: Time) -> Option<LeftOut> {
        let from = from.map(network_of);
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&from) {
            self.forget_oldest();
        }
        let source = self.sources.entry(from).or_insert_with(|| Source {
            lines: Lines::new(LINES_MAX),
            seen: now,
        });
        source.seen = now;
        if !self.all.has_room(now) || !source.lines.has_room(now) {
            source.lines.left_out += 1;
            return None;
        }
        self.all.write(now);
        Some(LeftOut {
            same: source.lines.write(now),
            others: std::mem::take(&mut self.forgotten),
        })
    }

    fn forget_oldest(&mut self) {
        let oldest = self.sources.iter().min_by_key(|(_, source)| source.seen);
        let Some(oldest) = oldest.map(|(from, _)| *from) else {
            return;
        };
        if let Some(source) = self.sources.remove(&oldest) {
            self.forgotten += source.lines.left_out;
        }
    }
}

/// The address that counts for this one.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let kept = u128::MAX << (u128::BITS - NETWORK_BITS);
            Ipv6Addr::from_bits(address.to_bits() & kept).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn from(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    const NONE: LeftOut = LeftOut { same: 0, others: 0 };

    #[test]
    fn at_most_ten_lines_a_second_and_the_next_one_counts_the_others() {
        let mut lines = Lines::new(LINES_MAX);
        let mut at = |at: u64| lines.line(ms(at));
        // Late in one second and early in the next are within one second, too.
        for ms in 900..910 {
            assert_eq!(at(ms), Some(0), "{ms}");
        }
        for ms in [910, 1000, 1500, 1899] {
            assert_eq!(at(ms), None, "{ms}");
        }
        assert_eq!(at(1900), Some(4));
        assert_eq!(at(1900), None);
        assert_eq!(at(1901), Some(1));
        assert_eq!(at(5000), Some(0));
    }

    #[test]
    fn one_address_takes_no_lines_from_others() {
        let mut refusals = Refusals::default();
        let bad = from("10.0.0.1");
        let written = (0..1000).filter(|_| refusals.line(bad, ms(0)).is_some());
        assert_eq!(written.count(), LINES_MAX);
        assert_eq!(refusals.line(from("10.0.0.2"), ms(1)), Some(NONE));
        assert_eq!(refusals.line(None, ms(1)), Some(NONE));
        // It is the same however it is written.
        assert_eq!(refusals.line(from("::ffff:10.0.0.1"), ms(2)), None);
        let after = refusals.line(bad, ms(1000)).expect("a line");
        assert_eq!((after.same, after.others), (991, 0));
        assert_eq!(after.told(), (Some(991), None));
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let mut refusals = Refusals::default();
        let one_of = |number: u32| from(&format!("2001:db8:0:1::{number:x}"));
        let written = (0..100).filter(|&at| refusals.line(one_of(at), ms(0)).is_some());
        assert_eq!(written.count(), LINES_MAX);
        assert_eq!(refusals.line(from("2001:db8:0:2::1"), ms(0)), Some(NONE));
    }

    #[test]
    fn all_addresses_together_have_a_bound_and_nothing_that_was_left_out_is_lost() {
        let mut refusals = Refusals::default();
        let (mut written, mut left_out, mut known_max) = (0, 0, 0);
        let rounds = 200_u64;
        for round in 0..rounds {
            for host in 0..1000_u32 {
                let from = Some(IpAddr::V4(host.into()));
                if let Some(before) = refusals.line(from, ms(round * 10)) {
                    written += 1;
                    left_out += before.same + before.others;
                }
                known_max = known_max.max(refusals.sources.len());
            }
        }
        assert_eq!(known_max, SOURCES_MAX);
        // It took two seconds.
        assert_eq!(written, 2 * ALL_LINES_MAX as u64);
        let kept: u64 = refusals.sources.values().map(|s| s.lines.left_out).sum();
        let all = written + left_out + kept + refusals.forgotten;
        assert_eq!(all, 1000 * rounds);
    }
}
