//! Whether what a volume or a snapshot holds is what it may hold.

use super::client_log::{ClientLog, Content, Kind, Writer, read_sector};
use crate::image::SECTOR_BYTES;

/// Which of a writer's requests must, and may, show in what is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// These first ones, stable or not.
    pub(crate) all_below: usize,
    /// Of these first ones the stable ones.
    pub(crate) stable_below: usize,
    /// None of those from here on.
    pub(crate) none_from: usize,
}

impl Bounds {
    fn must(&self, place: usize, stable: bool) -> bool {
        place < self.all_below || (stable && place < self.stable_below)
    }
}

/// Judges a writer's region, which holds `bytes`.
pub(crate) fn judge_region(
    log: &ClientLog,
    index: usize,
    bytes: &[u8],
    bounds: Bounds,
) -> Result<(), String> {
    let writer = &log.writers[index];
    // For each sector the latest request that it may show.
    let mut latest = Vec::with_capacity(writer.touching.len());
    for (at, content) in bytes.chunks_exact(SECTOR_BYTES as usize).enumerate() {
        let sector = writer.first + at as u64;
        let content = read_sector(sector, content)?;
        let shown = judge_sector(log, index, at, content, bounds);
        latest.push(shown.map_err(|what| format!("sector {sector} of writer {index} {what}"))?);
    }
    judge_wholeness(writer, bytes, &latest)
        .map_err(|what| format!("of writer {index} the write {what}"))
}

/// The latest request that the sector may show, or `None` if it shows that it was never written.
fn judge_sector(
    log: &ClientLog,
    index: usize,
    at: usize,
    content: Content,
    bounds: Bounds,
) -> Result<Option<usize>, String> {
    let writer = &log.writers[index];
    let places = writer.touching[at].iter().map(|place| *place as usize);
    let possible: Vec<usize> = places
        .take_while(|place| *place < bounds.none_from)
        .collect();
    let must = possible
        .iter()
        .rposition(|place| bounds.must(*place, writer.requests[*place].stable));
    let allowed = &possible[must.unwrap_or(0)..];
    let names = || -> Vec<(u64, Kind)> {
        let requests = allowed.iter().map(|place| writer.requests[*place]);
        requests.map(|r| (r.number, r.kind)).collect()
    };
    match content {
        Content::Zeros => {
            let mut clears = allowed.iter().rev().copied();
            let clear = clears.find(|place| writer.requests[*place].kind == Kind::Clear);
            if clear.is_none() && must.is_some() {
                return Err(format!("holds zeros and must hold one of {:?}", names()));
            }
            Ok(clear)
        }
        Content::Written(number) => {
            let sender = log.sender_of(number);
            let place = sender
                .filter(|(by, _)| *by == index)
                .map(|(_, place)| place);
            match place.filter(|place| allowed.contains(place)) {
                Some(place) => Ok(Some(place)),
                None => Err(format!(
                    "holds write {number} and must hold one of {:?}",
                    names()
                )),
            }
        }
    }
}

/// A write that shows anywhere has been done everywhere: no sector of it is older.
fn judge_wholeness(writer: &Writer, bytes: &[u8], latest: &[Option<usize>]) -> Result<(), String> {
    let mut judged = None;
    for (at, shown) in latest.iter().enumerate() {
        let start = at * SECTOR_BYTES as usize;
        let is_zeros = bytes[start..start + 8] == [0; 8];
        let Some(place) = shown.filter(|_| !is_zeros) else {
            continue;
        };
        if judged == Some(place) {
            continue;
        }
        judged = Some(place);
        let request = writer.requests[place];
        for sector in request.range() {
            let there = latest[(sector - writer.first) as usize];
            if there.is_none_or(|there| there < place) {
                return Err(format!(
                    "{} is there at sector {} and not at {sector}",
                    request.number,
                    writer.first + at as u64
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::client_log::stamp;
    use super::*;

    const LOG: &str = "volume 0 data 1\nwriter 0 0 0 4\n0 1 write-stable 0 4\n0 2 write 0 2\n\
                       0 3 clear 3 1\n0 4 write 2 2";

    fn judge(numbers: [u64; 4], bounds: (usize, usize, usize)) -> Result<(), String> {
        let log = ClientLog::parse(LOG).unwrap();
        let mut bytes = Vec::new();
        for (sector, number) in numbers.into_iter().enumerate() {
            match number {
                0 => bytes.extend([0; 512]),
                _ => bytes.extend(stamp(sector as u64, number)),
            }
        }
        let bounds = Bounds {
            all_below: bounds.0,
            stable_below: bounds.1,
            none_from: bounds.2,
        };
        judge_region(&log, 0, &bytes, bounds)
    }

    #[test]
    fn what_may_be_there_passes_and_nothing_else() {
        // Nothing answered, one sent.
        judge([0, 0, 0, 0], (0, 0, 1)).unwrap();
        judge([1, 1, 1, 1], (0, 0, 1)).unwrap();
        judge([1, 1, 0, 1], (0, 0, 1)).unwrap_err();
        judge([2, 2, 0, 0], (0, 0, 1)).unwrap_err();
        // The stable one answered, the next answered or not.
        judge([0, 0, 0, 0], (0, 1, 2)).unwrap_err();
        judge([1, 1, 1, 1], (0, 1, 2)).unwrap();
        judge([2, 2, 1, 1], (0, 1, 2)).unwrap();
        judge([2, 1, 1, 1], (0, 1, 2)).unwrap_err();
        judge([1, 1, 1, 1], (2, 2, 2)).unwrap_err();
        // Clearing, and writing over it.
        judge([1, 1, 1, 0], (0, 1, 4)).unwrap();
        judge([1, 1, 1, 0], (0, 1, 2)).unwrap_err();
        judge([1, 1, 4, 4], (0, 1, 4)).unwrap();
        judge([2, 2, 4, 4], (4, 4, 4)).unwrap();
        judge([2, 2, 4, 0], (0, 1, 4)).unwrap_err();
        judge([2, 2, 1, 0], (4, 4, 4)).unwrap_err();
        judge([2, 2, 1, 0], (3, 3, 4)).unwrap();
    }
}
