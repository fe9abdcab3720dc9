//! A large tree, made of a seed alone: into the export with `cp -a`, into archives and out of them, compared, removed.
//! It is in parts, each with everything, and the same is done to all of them at once.
//!
//! It has what trees of people don't have together: names of all kinds and lengths, deep and wide directories, links of
//! both kinds, files with holes, all modes and times, and files around the size from which they are objects.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};

use super::machine::{Kernel, Task};
use crate::e2e::load::Random;
use crate::e2e::scene::Scene;

/// In the scene's folder, as the guest's script knows it.
const FOLDER: &str = "large";
const PARTS: u64 = 4;
/// A directory's directories: nothing limits the length of a path but what programs have room for.
const DEPTH: usize = 40;
/// The same with names as long as they may be, of which fewer have room.
const LONG_DEPTH: usize = 6;
const NAME_BYTES_MAX: usize = 255;
/// Directories in which others are made have paths up to this length.
const PATH_BYTES_MAX: usize = 1_000;
/// There is a directory for so many files, and one directory of a part has the fourth part of its files.
const FILES_PER_FOLDER: u64 = 20;
const WIDE_PART: u64 = 4;
/// Around the sizes up to which files are kept in their inodes, and from which they are objects, and well above those.
const SIZES: [u64; 8] = [
    511,
    512,
    513,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (3 << 20) + 4_097,
    10 << 20,
];
/// The largest file has so much for each of the others: an emulated guest takes a second for a MiB, too long for CI if there
/// are many.
const LARGEST_BYTES_PER_FILE: u64 = 8 << 10;
/// Of files with holes, which have some pieces of data each. The script looks for their names.
const SPARSE: &str = "sparse-";
const SPARSE_SIZES: [u64; 4] = [300_000, (1 << 20) + 5, 12_345_678, 20 << 20];
const PIECE_BYTES: u64 = 6_000;
const FILE_MODES: [u32; 9] = [
    0o644, 0o600, 0o755, 0o444, 0o400, 0o640, 0o4755, 0o2755, 0o000,
];
/// Whoever made it must be able to remove it.
const FOLDER_MODES: [u32; 5] = [0o755, 0o700, 0o711, 0o1777, 0o2775];

/// A guest at work on the tree. Nobody waits for it until something else is done.
pub(super) struct Begun {
    guest: super::Begun<'static>,
    made: Made,
}

pub(super) fn begin(scene: &Scene, kernel: &Kernel, files: u64, seed: u64) -> Result<Begun> {
    let made = make(&scene.dir.join(FOLDER), files, seed)?;
    let task = Task {
        number: 4,
        parts: "mount cold_mount large_copy large_tar large_remove",
        ..Task::default()
    };
    let guest = super::Begun::begin(scene, kernel, task)?;
    Ok(Begun { guest, made })
}

impl Begun {
    pub(super) fn finish(self) -> Result<()> {
        let (machine, made) = (self.guest.finish()?, self.made);
        let printed = machine.printed();
        let takes = printed.iter().find_map(|line| {
            let words = line.trim().strip_prefix("guest: the large tree takes ")?;
            words.parse::<u64>().ok()
        });
        let takes = takes.context("the guest didn't say what the large tree takes")?;
        ensure!(
            takes >= made.bytes,
            "the large tree takes {takes} bytes, and its files have {}",
            made.bytes
        );
        println!(
            "a tree of {} files in {} directories: {} MiB, which take {}",
            made.files,
            made.folders,
            made.bytes >> 20,
            takes >> 20
        );
        Ok(())
    }
}

/// What there is.
#[derive(Default, Debug, PartialEq, Eq)]
struct Made {
    /// Whatever isn't a directory.
    files: u64,
    folders: u64,
    /// Of data, holes not counted.
    bytes: u64,
}

struct Maker {
    random: Random,
    top: PathBuf,
    /// Below it.
    folders: Vec<PathBuf>,
    regular: Vec<PathBuf>,
    made: Made,
}

fn make(top: &Path, files: u64, seed: u64) -> Result<Made> {
    fs::create_dir(top).with_context(|| format!("making {}", top.display()))?;
    let mut all = Made::default();
    for part in 0..PARTS {
        let mut maker = Maker {
            random: Random::new(seed.wrapping_mul(PARTS).wrapping_add(part)),
            top: top.join(part.to_string()),
            folders: Vec::new(),
            regular: Vec::new(),
            made: Made::default(),
        };
        maker.add_folder(PathBuf::new())?;
        maker.add_folders(files / PARTS)?;
        maker.add_files(part, files / PARTS)?;
        let made = maker.finish()?;
        all.files += made.files;
        all.folders += made.folders;
        all.bytes += made.bytes;
    }
    Ok(all)
}

impl Maker {
    fn add_folder(&mut self, path: PathBuf) -> Result<()> {
        let folder = self.top.join(&path);
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        self.made.folders += 1;
        self.folders.push(path);
        Ok(())
    }

    /// Two chains, and then anywhere.
    fn add_folders(&mut self, files: u64) -> Result<()> {
        for (depth, is_long) in [(DEPTH, false), (LONG_DEPTH, true)] {
            let mut path = PathBuf::new();
            for _ in 0..depth {
                let number = self.made.folders;
                path.push(if is_long {
                    OsString::from_vec(long_name(number))
                } else {
                    format!("deep {number}").into()
                });
                self.add_folder(path.clone())?;
            }
        }
        for _ in 0..files / FILES_PER_FOLDER {
            let mut above = self.any_folder();
            while above.as_os_str().len() > PATH_BYTES_MAX {
                above = self.any_folder();
            }
            let name = self.name();
            self.add_folder(above.join(name))?;
        }
        Ok(())
    }

    /// Of the large ones each is in one part, and of those with holes, too.
    fn add_files(&mut self, part: u64, files: u64) -> Result<()> {
        let wide = PathBuf::from("wide");
        self.add_folder(wide.clone())?;
        let of_part = |sizes: &[u64]| -> Vec<u64> {
            let sizes = sizes.iter().skip(part as usize);
            sizes.step_by(PARTS as usize).copied().collect()
        };
        let largest = files * PARTS * LARGEST_BYTES_PER_FILE;
        for size in of_part(&[&SIZES[..], &[largest]].concat()) {
            let path = self.path_in_any(&format!("size-{size}-"));
            self.add_file(path, size)?;
        }
        for size in of_part(&SPARSE_SIZES) {
            let path = self.path_in_any(SPARSE);
            self.add_sparse(path, size)?;
        }
        while self.made.files < files {
            let name = self.name();
            let path = match self.random.below(WIDE_PART) {
                0 => wide.join(name),
                _ => self.any_folder().join(name),
            };
            match self.random.below(25) {
                0 => self.add_link(path)?,
                1 | 2 => self.add_symbolic_link(path)?,
                _ => {
                    let size = self.size();
                    self.add_file(path, size)?;
                }
            }
        }
        Ok(())
    }

    fn any_folder(&mut self) -> PathBuf {
        let index = self.random.below(self.folders.len() as u64);
        self.folders[index as usize].clone()
    }

    fn path_in_any(&mut self, start: &str) -> PathBuf {
        let name = format!("{start}{}", self.made.files);
        self.any_folder().join(name)
    }

    /// One that nothing has yet.
    fn name(&mut self) -> OsString {
        let number = self.made.files + self.made.folders;
        let name = match self.random.below(16) {
            0 => format!("two  spaces {number}").into_bytes(),
            1 => format!(" at both ends {number} ").into_bytes(),
            2 => format!("gr\u{f6}\u{df}e-\u{6587}\u{4ef6}-\u{1f980}-{number}").into_bytes(),
            3 => long_name(number),
            4 => [b"\xff\xfe not UTF-8 ", number.to_string().as_bytes()].concat(),
            5 => format!("-rf {number}").into_bytes(),
            6 => format!("two\nlines {number}").into_bytes(),
            7 => format!("'\"\\*?$(x)`{number}").into_bytes(),
            8 => format!(".hidden-{number}").into_bytes(),
            _ => format!("f{number}.txt").into_bytes(),
        };
        OsString::from_vec(name)
    }

    fn size(&mut self) -> u64 {
        let below = match self.random.below(100) {
            0..10 => 1,
            10..60 => 4_097,
            60..90 => 20_000,
            90..98 => 100_000,
            _ => 300_000,
        };
        self.random.below(below)
    }

    fn add_file(&mut self, path: PathBuf, size: u64) -> Result<()> {
        let mut file = self.create(&path)?;
        self.write(&mut file, size)?;
        self.finish_file(&file, path)
    }

    /// Data in each third of it, and a hole at the end.
    fn add_sparse(&mut self, path: PathBuf, size: u64) -> Result<()> {
        let mut file = self.create(&path)?;
        for third in 0..3 {
            let at = third * size / 3 + self.random.below(size / 3 - PIECE_BYTES);
            file.seek(SeekFrom::Start(at)).context("making a hole")?;
            self.write(&mut file, PIECE_BYTES)?;
        }
        file.set_len(size).context("making the last hole")?;
        self.finish_file(&file, path)
    }

    fn create(&self, path: &Path) -> Result<File> {
        let path = self.top.join(path);
        File::create_new(&path).with_context(|| format!("making {}", path.display()))
    }

    fn write(&mut self, file: &mut File, size: u64) -> Result<()> {
        let mut bytes = Vec::with_capacity(size as usize + 7);
        while (bytes.len() as u64) < size {
            bytes.extend(self.random.next().to_le_bytes());
        }
        bytes.truncate(size as usize);
        self.made.bytes += size;
        file.write_all(&bytes).context("writing the large tree")
    }

    fn finish_file(&mut self, file: &File, path: PathBuf) -> Result<()> {
        let mode = FILE_MODES[self.random.below(FILE_MODES.len() as u64) as usize];
        file.set_permissions(Permissions::from_mode(mode))
            .context("setting a mode")?;
        file.set_modified(self.time()).context("setting a time")?;
        self.regular.push(path);
        self.made.files += 1;
        Ok(())
    }

    /// As late as the protocol has words for, nearly.
    fn time(&mut self) -> SystemTime {
        let (seconds, nanos) = (
            1 + self.random.below(4_000_000_000),
            self.random.below(1_000_000_000),
        );
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos as u32)
    }

    fn add_link(&mut self, path: PathBuf) -> Result<()> {
        let index = self.random.below(self.regular.len() as u64);
        let to = self.top.join(&self.regular[index as usize]);
        fs::hard_link(to, self.top.join(path)).context("making a link")?;
        self.made.files += 1;
        Ok(())
    }

    /// To something that is there, to nothing, and with a long way.
    fn add_symbolic_link(&mut self, path: PathBuf) -> Result<()> {
        let above = path.parent().map_or(0, |parent| parent.iter().count());
        let target = match self.random.below(4) {
            0 => PathBuf::from(OsString::from_vec(b"no \xffwhere".to_vec())),
            1 => "t/".repeat(1 + self.random.below(1_000) as usize).into(),
            2 => "../".repeat(above).into(),
            _ => {
                let index = self.random.below(self.regular.len() as u64);
                let target = &self.regular[index as usize];
                PathBuf::from("../".repeat(above)).join(target)
            }
        };
        let target = if target.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            target
        };
        symlink(target, self.top.join(path)).context("making a symbolic link")?;
        self.made.files += 1;
        Ok(())
    }

    /// Directories get their modes and times when nothing is made in them any more.
    fn finish(mut self) -> Result<Made> {
        for path in std::mem::take(&mut self.folders) {
            let folder = File::open(self.top.join(path)).context("opening a directory")?;
            let mode = FOLDER_MODES[self.random.below(FOLDER_MODES.len() as u64) as usize];
            folder
                .set_permissions(Permissions::from_mode(mode))
                .context("setting a mode")?;
            folder.set_modified(self.time()).context("setting a time")?;
        }
        Ok(self.made)
    }
}

fn long_name(number: u64) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    name.resize(NAME_BYTES_MAX, b'n');
    name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::repo;

    /// Everything but times of links and of the last look.
    fn look(top: &Path, path: &Path, seen: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(top.join(path)).expect("is a directory") {
            let path = path.join(entry.expect("is there").file_name());
            let whole = top.join(&path);
            let facts = fs::symlink_metadata(&whole).expect("is there");
            let shown = if facts.is_symlink() {
                format!("{:?}", fs::read_link(&whole).expect("is a link"))
            } else {
                let length = if facts.is_file() { facts.len() } else { 0 };
                format!(
                    "{:o} {} {} {length} {}.{}",
                    facts.mode(),
                    facts.is_file(),
                    facts.nlink(),
                    facts.mtime(),
                    facts.mtime_nsec()
                )
            };
            if facts.is_dir() {
                look(top, &path, seen);
            }
            seen.insert(path, shown);
        }
    }

    #[test]
    fn a_seed_makes_one_tree_which_has_everything() {
        let folder = std::env::temp_dir().join(format!("large-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("is made");
        let trees = ["a", "b"].map(|name| {
            let top = folder.join(name);
            let made = make(&top, 400, 3).expect("is made");
            let mut seen = BTreeMap::new();
            look(&top, Path::new(""), &mut seen);
            (made, seen)
        });
        // Others may not read what has no permissions.
        if repo::is_root().expect("is known") {
            let mut diff = std::process::Command::new("diff");
            diff.args(["-r", "--no-dereference"])
                .args([folder.join("a"), folder.join("b")]);
            repo::output(diff).expect("they are the same");
        }
        assert_eq!(trees[0], trees[1]);
        let (made, seen) = &trees[0];
        assert_eq!(made.files, 400);
        assert_eq!(seen.len() as u64, made.files + made.folders);
        let has = |what: &dyn Fn(&Path, &str) -> bool| seen.iter().any(|(path, it)| what(path, it));
        assert!(has(&|path, _| path.iter().count() > DEPTH));
        assert!(has(&|path, _| path
            .file_name()
            .is_some_and(|name| name.len() == NAME_BYTES_MAX)));
        assert!(has(&|path, _| path.to_str().is_none()));
        assert!(has(&|_, it| it.contains(" true 2 ")));
        assert!(has(&|_, it| it.starts_with('"')));
        fs::remove_dir_all(folder).expect("is removed");
    }
}
