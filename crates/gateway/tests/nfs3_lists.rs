//! READDIR and READDIRPLUS: limits to the byte, cookies, directories that change meanwhile.

use crate::nfs_server;
use crate::support;

use std::collections::BTreeMap;

use flagstone_fs::FileError;
use nfs_server::client::*;
use nfs_server::{Scene, run};
use support::stream::MemoryStream;

/// An entry: number, name, cookie; attributes and handle with READDIRPLUS.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    number: u64,
    name: Vec<u8>,
    cookie: u64,
    plus: Option<(Attr, Vec<u8>)>,
}

struct List {
    lines: Vec<Line>,
    is_end: bool,
    /// Of the result behind the status word, in bytes.
    bytes: usize,
}

const READDIR: u32 = 16;
const PLUS: u32 = 17;

async fn list(
    client: &Client<MemoryStream>,
    procedure: u32,
    directory: &[u8],
    cookie: u64,
    limits: (u32, u32),
) -> Result<List, u32> {
    let args = Args::new().opaque(directory).u64(cookie).u64(0);
    let args = match procedure {
        PLUS => args.u32(limits.0).u32(limits.1),
        _ => args.u32(limits.1),
    };
    let (status, mut body) = client.nfs(procedure, args).await;
    let bytes = body.left();
    let of_directory = body.post_op();
    if status != OK {
        body.end();
        return Err(status);
    }
    of_directory.expect("the directory's attributes");
    assert_eq!(body.u64(), 0, "the verifier");
    let mut lines = Vec::new();
    while body.bool() {
        let (number, name, cookie) = (body.u64(), body.opaque(), body.u64());
        let plus = (procedure == PLUS).then(|| {
            let attributes = body.post_op().expect("attributes");
            (attributes, body.post_op_handle().expect("a handle"))
        });
        lines.push(Line {
            number,
            name,
            cookie,
            plus,
        });
    }
    let is_end = body.bool();
    body.end();
    assert!(bytes <= limits.1 as usize, "{bytes} of {limits:?}");
    Ok(List {
        lines,
        is_end,
        bytes,
    })
}

/// All of a directory, in parts.
async fn whole(
    client: &Client<MemoryStream>,
    procedure: u32,
    directory: &[u8],
    limits: (u32, u32),
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    loop {
        let cookie = lines.last().map_or(0, |line| line.cookie);
        let part = list(client, procedure, directory, cookie, limits).await;
        let part = part.expect("a part");
        assert!(part.is_end || !part.lines.is_empty(), "it goes on");
        lines.extend(part.lines);
        if part.is_end {
            return lines;
        }
    }
}

async fn filled(
    scene: &Scene,
    count: usize,
) -> (Client<MemoryStream>, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>) {
    let client = scene.connect();
    let root = client.mount("/data").await;
    let directory = client.make_directory(&root, "directory").await;
    let mut made = BTreeMap::new();
    for index in 0..count {
        let name = format!("{}{index}", "n".repeat(index % 97));
        let handle = client.create(&directory, &name).await;
        made.insert(name.into_bytes(), handle);
    }
    (client, directory, made)
}

/// [rfc1813 3.3.16] [rfc1813 3.3.17] test
#[test]
fn every_name_once_whatever_fits() {
    run(21, |scene| async move {
        let (client, directory, made) = filled(&scene, 700).await;
        let of_directory = client.getattr(&directory).await;
        for limits in [(200, 420), (512, 4096), (4096, 4096), (1 << 20, 1 << 20)] {
            for procedure in [READDIR, PLUS] {
                let lines = whole(&client, procedure, &directory, limits).await;
                assert_eq!(lines.len(), 702);
                let names: Vec<&[u8]> = lines.iter().map(|line| &line.name[..]).collect();
                assert_eq!(names[..2], [&b"."[..], b".."]);
                assert_eq!(lines[0].number, of_directory.number);
                assert_eq!(lines[1].number, 1);
                for line in &lines[2..] {
                    let Some((attributes, handle)) = &line.plus else {
                        assert_eq!(procedure, READDIR);
                        continue;
                    };
                    assert_eq!(handle, &made[&line.name]);
                    assert_eq!(attributes.number, line.number);
                }
                let sorted: std::collections::BTreeSet<&[u8]> = names.into_iter().collect();
                assert_eq!(sorted.len(), 702);
            }
        }
        let line = &whole(&client, PLUS, &directory, (4096, 8192)).await[5];
        let (attributes, handle) = line.plus.clone().expect("both");
        assert_eq!(attributes, client.getattr(&handle).await);
    });
}

/// [rfc1813 3.3.16] test: the result takes as much as it may, and not a byte more.
#[test]
fn limits_to_the_byte() {
    run(22, |scene| async move {
        let (client, directory, _) = filled(&scene, 3).await;
        let all = list(&client, READDIR, &directory, 0, (0, 4096)).await;
        let all = all.expect("all");
        assert!(all.is_end);
        // Attributes 88, verifier 8, end 8; `.` 28, `..` 28, `0` 28, `n1` 28, `nn2` 28.
        assert_eq!(all.bytes, 88 + 8 + 8 + 5 * 28);
        let part = async |procedure, limits| list(&client, procedure, &directory, 0, limits).await;
        let exact = part(READDIR, (0, 244)).await.expect("all");
        assert_eq!((exact.lines.len(), exact.is_end), (5, true));
        let less = part(READDIR, (0, 243)).await.expect("some");
        assert_eq!((less.lines.len(), less.is_end), (4, false));
        let one = part(READDIR, (0, 132)).await.expect("one");
        assert_eq!((one.lines.len(), one.is_end), (1, false));
        for count in [0, 103, 104, 131] {
            let refused = part(READDIR, (0, count)).await.err();
            assert_eq!(refused, Some(TOOSMALL), "{count}");
        }
        // With attributes and handles each takes 88 + 56 more.
        let exact = part(PLUS, (4096, 104 + 5 * 172)).await.expect("all");
        assert_eq!((exact.lines.len(), exact.is_end), (5, true));
        let less = part(PLUS, (4096, 104 + 5 * 172 - 1)).await.expect("some");
        assert_eq!((less.lines.len(), less.is_end), (4, false));
        // The number of names' bytes is advice, and the first one may exceed it.
        let two = part(PLUS, (56, 4096)).await.expect("two");
        assert_eq!((two.lines.len(), two.is_end), (2, false));
        let first = part(PLUS, (0, 4096)).await.expect("one");
        assert_eq!((first.lines.len(), first.is_end), (1, false));
        // Behind the last name there is nothing, and that fits.
        let last = all.lines[4].cookie;
        let end = list(&client, READDIR, &directory, last, (0, 104)).await;
        let end = end.expect("the end");
        assert_eq!((end.lines.len(), end.is_end), (0, true));
    });
}

/// [rfc1813 3.3.16] test: cookies.
#[test]
fn cookies_stay_valid() {
    run(23, |scene| async move {
        let (client, directory, made) = filled(&scene, 200).await;
        let first = list(&client, READDIR, &directory, 0, (0, 1000)).await;
        let mut lines = first.expect("a part").lines;
        // Half of the names go, the last one seen among them; others come, one gets another file.
        let seen = lines.last().expect("some").name.clone();
        for (index, name) in made.keys().enumerate() {
            if index % 2 == 0 || *name == seen {
                let args = Args::new().place(&directory, name);
                assert_eq!(client.status(12, args).await, OK);
            }
        }
        for index in 0..50 {
            client.create(&directory, &format!("new-{index}")).await;
        }
        loop {
            let cookie = lines.last().expect("some").cookie;
            let part = list(&client, READDIR, &directory, cookie, (0, 1000)).await;
            let part = part.expect("a part");
            lines.extend(part.lines);
            if part.is_end {
                break;
            }
        }
        let mut found = BTreeMap::new();
        for line in &lines {
            *found.entry(&line.name[..]).or_insert(0) += 1;
        }
        assert!(found.values().all(|count| *count == 1));
        for (index, name) in made.keys().enumerate() {
            if index % 2 == 1 {
                assert_eq!(found.get(&name[..]), Some(&1));
            }
        }
        // A verifier of a client's own is not looked at; a cookie that was never given is.
        let args = Args::new().opaque(&directory).u64(lines[3].cookie).u64(77);
        assert_eq!(client.status(16, args.u32(4096)).await, OK);
        let args = Args::new().opaque(&directory).u64(u64::MAX).u64(0);
        assert_eq!(client.status(16, args.u32(4096)).await, BAD_COOKIE);
    });
}

#[test]
fn failures_of_listings() {
    run(24, |scene| async move {
        let (client, directory, made) = filled(&scene, 2000).await;
        let file = made.values().next().expect("some");
        for procedure in [READDIR, PLUS] {
            let refused = list(&client, procedure, file, 0, (4096, 4096)).await;
            assert_eq!(refused.err(), Some(NOTDIR));
        }
        // One that fails in its middle ends there.
        scene.files.fail("list", FileError::Device, 0);
        let whole_bytes = (1 << 20, 1 << 20);
        let all = list(&client, READDIR, &directory, 0, whole_bytes).await;
        let all = all.expect("a part").lines.len();
        assert!(all > 700, "{all}");
        client.become_user(5, 5, &[]);
        let set = Set {
            mode: Some(0o700),
            ..Set::default()
        };
        client.become_user(0, 0, &[]);
        let args = Args::new().opaque(&directory).set(&set).u32(0);
        assert_eq!(client.status(2, args).await, OK);
        client.become_user(5, 5, &[]);
        for procedure in [READDIR, PLUS] {
            let refused = list(&client, procedure, &directory, 0, (4096, 4096)).await;
            assert_eq!(refused.err(), Some(ACCES));
        }
    });
}
