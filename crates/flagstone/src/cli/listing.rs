//! Lists that come in pages, put together.

use serde::de::DeserializeOwned;

use crate::client::{Client, query_value};
use crate::node::{FilesystemPage, SnapshotPage, VolumePage};

/// Rows that are asked for at a time.
const ROWS: usize = 5000;

/// A page of a list; also the whole list, which has no next one.
pub(super) trait Page: DeserializeOwned {
    /// What comes behind it.
    fn next(&mut self) -> &mut Option<String>;

    /// Puts the rows of the page behind it to its own.
    fn append(&mut self, page: Self);
}

macro_rules! pages {
    ($($page:ty)*) => {$(
        impl Page for $page {
            fn next(&mut self) -> &mut Option<String> {
                &mut self.next
            }

            fn append(&mut self, page: Self) {
                self.items.extend(page.items);
                self.next = page.next;
            }
        }
    )*};
}

pages!(FilesystemPage SnapshotPage VolumePage);

/// All rows of a list, or those that `wanted` says: a parameter and its value.
pub(super) fn all<T: Page>(
    client: &Client,
    path: &str,
    wanted: Option<(&str, &str)>,
) -> anyhow::Result<T> {
    let mut first = format!("{path}?limit={ROWS}");
    if let Some((parameter, value)) = wanted {
        first += &format!("&{parameter}={}", query_value(value));
    }
    let mut all: T = client.get(&first)?;
    while let Some(after) = all.next().clone() {
        let page: T = client.get(&format!("{first}&after={}", query_value(&after)))?;
        all.append(page);
        // A node that names the same place again would keep us here for ever.
        if *all.next() == Some(after) {
            *all.next() = None;
        }
    }
    Ok(all)
}
