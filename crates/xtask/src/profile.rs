//! `cargo xtask profile`: writes down how the program runs under load, for release builds to be made by.
//!
//! A build that counts runs the loads of `bench nfs` and `bench block` for some minutes; what it has counted is kept in the
//! repository. How builds come by it is in `tools/release/rustc`, and what it brings in
//! `docs/decisions/2026-11-30-profile-of-releases.md`.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::repo;

/// Kept in the repository.
const PROFILE: &str = "tools/release/flagstone.profdata";
/// Tells `tools/release/rustc` where the build is to leave its counts.
const INTO: &str = "FLAGSTONE_PROFILE_INTO";
/// What is run: every point of files, the ways to a volume, and what volumes are judged by.
const LOADS: [&str; 3] = [
    "nfs --no-peers --rounds 1 --seconds 1 --size 256M",
    "remote --no-peers --rounds 2",
    "block --no-peers --rounds 1 --seconds 1 --size 512M --device-size 3G \
     --points rr1,rr32,rw1,rw32,wf1,wf32,fua32,sw8,sr8",
];

pub(crate) fn run(root: &Path) -> Result<()> {
    let merge = profdata(root)?;
    // Apart from other builds: what counts is no use to anybody else.
    let work = repo::target_dir(root).join("profile");
    let counts = work.join("counts");
    if counts.exists() {
        fs::remove_dir_all(&counts).with_context(|| format!("removing {}", counts.display()))?;
    }
    fs::create_dir_all(&counts).with_context(|| format!("making {}", counts.display()))?;
    println!("building flagstone so that it counts: some ten minutes");
    let mut cargo = repo::cargo(root);
    cargo
        .args(["build", "--release", "--quiet", "--package", "flagstone"])
        .env("CARGO_TARGET_DIR", &work)
        .env(INTO, &counts);
    must_succeed(cargo, "the build of flagstone that counts")?;
    let binary = work.join("release/flagstone");
    let myself = env::current_exe().context("finding this program")?;
    for load in LOADS {
        println!("running it under load: {load}");
        let mut bench = Command::new(&myself);
        bench.current_dir(root).arg("bench").args(load.split(' '));
        bench.arg("--binary").arg(&binary);
        bench.arg("--out").arg(&work);
        must_succeed(bench, "a load")?;
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&counts).context("looking for counts")? {
        found.push(entry.context("looking for counts")?.path());
    }
    ensure!(
        !found.is_empty(),
        "no counts in {}: was flagstone built by way of tools/release/rustc, with its link-time optimisation, and did it stop by \
         itself? If {} was built in another way, remove it",
        counts.display(),
        work.display()
    );
    let mut merged = Command::new(merge);
    merged.args(["merge", "--sparse", "--output"]);
    merged.arg(root.join(PROFILE)).args(&found);
    must_succeed(merged, "putting the counts together")?;
    println!(
        "written: {PROFILE}. Cargo doesn't see that it has changed: `cargo clean --release` before the next release build"
    );
    Ok(())
}

fn must_succeed(mut command: Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("starting {what}"))?;
    ensure!(status.success(), "{what} failed");
    Ok(())
}

/// The toolchain's own program for such files: those of other versions don't read them.
fn profdata(root: &Path) -> Result<PathBuf> {
    let ask = |what: &[&str]| -> Result<String> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let said = rustc.current_dir(root).args(what).output();
        let said = said.context("asking rustc where its tools are")?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    };
    let sysroot = ask(&["--print", "sysroot"])?;
    let version = ask(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc doesn't say what it runs on")?;
    let name = format!("llvm-profdata{}", env::consts::EXE_SUFFIX);
    let path = [sysroot.trim(), "lib", "rustlib", host, "bin", &name]
        .map(OsStr::new)
        .iter()
        .collect::<PathBuf>();
    ensure!(
        path.exists(),
        "{} is missing: rustup component add llvm-tools",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a release build does first, which CI doesn't: the profile is one that this compiler reads, and comes to it.
    #[test]
    fn the_compiler_reads_the_profile() {
        let root = repo::root().expect("is in the repository");
        let dir = env::temp_dir().join(format!("profile-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("makes a folder");
        let source = dir.join("source.rs");
        fs::write(&source, "pub fn nothing() {}").expect("writes");
        let compile = |into: Option<&Path>| {
            let mut rustc = Command::new(root.join("tools/release/rustc"));
            rustc.current_dir(&root).arg("rustc").arg(&source);
            rustc.args(["--crate-type", "lib", "--emit", "llvm-ir"]);
            rustc.args(["-C", "linker-plugin-lto", "-o"]);
            rustc.arg(dir.join("source.ll")).env_remove(INTO);
            if let Some(into) = into {
                rustc.env(INTO, into);
            }
            let out = rustc.output().expect("runs");
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            (out.status.success(), said)
        };
        assert_eq!(compile(None), (true, String::new()));
        let counts = dir.join("counts");
        assert_eq!(compile(Some(&counts)), (true, String::new()));
        let made = fs::read_to_string(dir.join("source.ll")).expect("is there");
        let path = counts.to_str().expect("is text");
        assert!(made.contains(path), "a build that counts says where to");
        fs::remove_dir_all(&dir).expect("removes its folder");
    }
}
