//! What can't be read: of one filesystem it is said, and the others go on; one that can't be rolled back opens again.

use flagstone_device::engine::DvolInfo;

use super::*;
use crate::change::versions;
use crate::error::FileError;
use crate::filesystem::Rolling;
use crate::object::NAME_PREFIX;

const SNAPSHOT: u32 = 1;

impl Stage {
    /// A file of a snapshot with a block that can't be read. Gives its key and what it was.
    async fn damaged_snapshot(&self, name: &str) -> (FileId, Vec<u8>, Vec<u8>) {
        let file = self.make(name).await;
        self.write(file, 1, 9000).await;
        self.fs.take_snapshot("then").await.expect("takes one");
        self.write(file, 2, 9000).await;
        let key = self.keys().block(file, 0);
        let (key, value) = self.scan(versions(&key, SNAPSHOT)).await.remove(0);
        self.put(&key, b"damage").await;
        (file, key, value)
    }

    async fn first_byte(&self, file: FileId) -> Result<u8, FileError> {
        let by = Caller::default();
        let read = self.fs.read(&by, Node::live(file), 0, 1).await?;
        match &read.pieces[0] {
            crate::Piece::Data(data) => Ok(data[0]),
            crate::Piece::Zeros(_) => Ok(0),
        }
    }
}

#[test]
fn one_filesystem_that_cannot_be_read_does_not_hide_the_others() {
    run(async |stage| {
        let file = stage.make("file").await;
        stage.write(file, 1, 9000).await;
        let other = stage.all.create("other", 0).await.expect("makes");
        let third = stage.all.create("third", 0).await.expect("makes");
        let key = other.inner.keys.superblock();
        let good = stage.inner().tree.get(&key).await.expect("reads");
        let good = good.value.expect("is there");
        stage.put(&key, b"damage").await;
        stage.put(&third.inner.keys.counters(), b"damage").await;
        stage.reopen().await;
        let reports = stage.all.check().await.expect("goes on");
        let problems: Vec<(String, usize)> = reports
            .iter()
            .map(|(info, report)| (info.name.clone(), report.problems.len()))
            .collect();
        let name = |name: &str, count| (name.to_owned(), count);
        assert_eq!(
            problems,
            [name("files", 0), name("other", 1), name("third", 1)]
        );
        assert_eq!(reports[0].1.files, 2);
        stage.put(&key, &good).await;
        stage.delete(&third.inner.keys.counters()).await;
        let counters = crate::superblock::Usage { files: 1, bytes: 0 }.counters();
        let mut tx = stage.inner().tree.begin();
        tx.count(&third.inner.keys.counters(), counters)
            .expect("fits");
        tx.commit().await.expect("commits");
        stage.reopen().await;
    });
}

#[test]
fn what_cannot_be_rolled_back_is_open_again_as_it_was() {
    run(async |stage| {
        let (file, key, value) = stage.damaged_snapshot("file").await;
        // What would be changed first, if anything were.
        let first = stage.make("new").await;
        stage.write(first, 3, 9000).await;
        stage.fs.roll_back("then").await.expect("begins");
        assert_eq!(stage.first_byte(file).await, Err(FileError::Later));
        stage.sleep_ns(20_000_000_000).await;
        assert_eq!(stage.fs.rolling_back_to(), None);
        assert_eq!(stage.first_byte(file).await, Ok(2));
        assert_eq!(stage.first_byte(first).await, Ok(3));
        let problem = stage.fs.describe().problem.expect("is said");
        assert!(
            problem.contains("'then'") && problem.contains("as it was before"),
            "{problem}"
        );
        // Also behind a restart.
        stage.reopen().await;
        assert_eq!(stage.first_byte(file).await, Ok(2));
        stage.put(&key, &value).await;
        stage.fs.roll_back("then").await.expect("begins");
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.first_byte(file).await, Ok(1));
        assert_eq!(stage.fs.describe().problem, None);
    });
}

#[test]
fn what_is_half_rolled_back_says_so_and_takes_another_snapshot() {
    run(async |stage| {
        let (file, key, value) = stage.damaged_snapshot("file").await;
        stage
            .fs
            .take_snapshot("after")
            .await
            .expect("takes another");
        stage.write(file, 7, 9000).await;
        // As an older version began it.
        let rolling = Rolling {
            to: SNAPSHOT,
            is_looking: false,
        };
        stage.put(&stage.keys().rollback(), &rolling.encode()).await;
        stage.reopen().await;
        stage.sleep_ns(1_000_000).await;
        assert_eq!(stage.fs.roll_back("after").await, Err(FileError::Later));
        stage.sleep_ns(20_000_000_000).await;
        let said = stage.fs.describe();
        assert_eq!(said.rolling_back_to, Some("then".to_owned()));
        let problem = said.problem.expect("is said");
        assert!(
            problem.contains("half") && problem.contains("another snapshot"),
            "{problem}"
        );
        stage.fs.roll_back("after").await.expect("begins");
        stage.sleep_ns(2_000_000_000).await;
        assert_eq!(stage.fs.describe().problem, None);
        assert_eq!(stage.fs.rolling_back_to(), None);
        assert_eq!(stage.first_byte(file).await, Ok(2));
        stage.put(&key, &value).await;
    });
}

/// A dvol that is missing looks like one that others are just deleting; but while it is rolled back nobody does.
#[test]
fn what_has_lost_a_dvol_is_not_rolled_back_for_ever() {
    run(async |stage| {
        let large = stage.make("large").await;
        stage.write(large, 1, 2 * PROMOTE_BYTES as usize).await;
        stage.sleep_ns(1_000_000_000).await;
        stage.fs.take_snapshot("then").await.expect("takes one");
        stage.write(large, 2, 9000).await;
        let of_file = |info: &DvolInfo| info.name.starts_with(NAME_PREFIX);
        let dvol = stage.engine.dvols().into_iter().find(of_file);
        let dvol = dvol.expect("it is large");
        let renamed = stage.engine.rename(dvol.handle, "elsewhere").await;
        renamed.expect("renames");
        stage.fs.roll_back("then").await.expect("begins");
        stage.sleep_ns(20_000_000_000).await;
        assert_eq!(stage.fs.rolling_back_to(), None);
        let problem = stage.fs.describe().problem.expect("is said");
        assert!(problem.contains("as it was before"), "{problem}");
        let renamed = stage.engine.rename(dvol.handle, &dvol.name).await;
        renamed.expect("renames");
        stage.reopen().await;
        assert_eq!(stage.first_byte(large).await, Ok(2));
        stage.fs.roll_back("then").await.expect("begins");
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.first_byte(large).await, Ok(1));
    });
}
