//! A device as a plain file, read only, and results of the device layer as JSON.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flagstone_device::offline::{BlockBytes, ReadBlocks, Tree};
use flagstone_types::{BLOCK_SIZE, BlockNo};
use serde_json::Value;

/// A file or block device that is only read.
pub(super) struct FileImage {
    file: File,
    block_count: u64,
}

impl FileImage {
    /// Opens it. Bytes behind the last whole block are not part of it.
    pub(super) fn open(path: &Path) -> io::Result<FileImage> {
        let mut file = File::open(path)?;
        // Metadata knows the size of files only.
        let size_bytes = file.seek(SeekFrom::End(0))?;
        Ok(FileImage {
            file,
            block_count: size_bytes / BLOCK_SIZE,
        })
    }
}

impl ReadBlocks for FileImage {
    fn block_count(&self) -> u64 {
        self.block_count
    }

    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        self.file.read_exact_at(into, block.offset_bytes())
    }
}

/// The same as JSON.
pub(super) fn to_json(tree: &Tree) -> Value {
    match tree {
        Tree::None => Value::Null,
        Tree::Flag(flag) => Value::from(*flag),
        Tree::Number(number) => Value::from(*number),
        Tree::Text(text) => Value::from(text.as_str()),
        Tree::List(items) => items.iter().map(to_json).collect(),
        Tree::Fields(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), to_json(value)));
            Value::Object(fields.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_become_json() {
        let tree = Tree::Fields(vec![
            ("none", Tree::None),
            (
                "list",
                Tree::list([Tree::from(1_u64), Tree::from(true), Tree::from("x")]),
            ),
        ]);
        assert_eq!(
            to_json(&tree),
            serde_json::json!({"none": null, "list": [1, true, "x"]})
        );
    }
}
