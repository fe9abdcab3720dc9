//! What the fuzzer runs: bytes become calls with handles that are right, so that they reach the procedures.
//! The stable tests call it with random bytes.

use flagstone_gateway::rpc::server::RpcLimits;
use flagstone_platform::Stream;

use super::client::{Args, Body, MOUNT, NFS, Reply, Set};
use super::run_with;
use crate::support::stream::Link;

/// The longest name or other text that is built, in bytes.
const TEXT_BYTES_MAX: u8 = 40;

/// Bytes as instructions.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn text(&mut self) -> Vec<u8> {
        let len = self.byte() % TEXT_BYTES_MAX;
        (0..len).map(|_| self.byte()).collect()
    }

    /// The next item of a call's arguments.
    fn item(&mut self, args: Args, handles: &[Vec<u8>]) -> Args {
        match self.byte() % 8 {
            0 | 1 => args.opaque(&handles[usize::from(self.byte()) % handles.len()]),
            2 => args.opaque(&self.text()),
            3 => args.u32(u32::from(self.byte())),
            4 => args.u64(u64::from(self.byte()) << (self.byte() % 64)),
            5 => args.set(&Set::default()),
            6 => args.opaque(b"directory"),
            _ => {
                let text = self.text();
                Args([args.0, text].concat())
            }
        }
    }
}

/// Makes calls of `script` and sends them to a server. Whatever they are, the server lives, answers who else
/// is there, and leaves nothing running.
pub fn calls(seed: u64, script: &[u8]) {
    let script = script.to_vec();
    run_with(seed, RpcLimits::default(), move |scene| async move {
        let good = scene.connect();
        let root = good.mount("/data").await;
        let directory = good.make_directory(&root, "directory").await;
        let file = good.create(&directory, "file").await;
        let target = Args::new().place(&root, b"link").set(&Set::default());
        let link = good.made(10, target.opaque(b"directory/file")).await;
        let link = link.expect("made").0;
        let handles = [root, directory, file, link, vec![1; 48]];
        let link = Link {
            capacity: 8 << 20,
            portion_max: if seed.is_multiple_of(3) {
                60
            } else {
                usize::MAX
            },
            seed,
            peer: "127.0.0.1:700",
        };
        let (client, end) = scene.connect_over(link);
        let mut script = Script(&script);
        while !script.0.is_empty() {
            let procedure = u32::from(script.byte() % 23);
            let program = if script.byte().is_multiple_of(16) {
                MOUNT
            } else {
                NFS
            };
            // Nearly all arguments begin with a handle.
            let mut args = match script.byte() {
                first @ 0..240 => Args::new().opaque(&handles[usize::from(first) % handles.len()]),
                _ => Args::new(),
            };
            for _ in 0..script.byte() % 8 {
                args = script.item(args, &handles);
            }
            let xid = u32::from(script.byte() % 4);
            let record = client.record(xid, (program, 3, procedure), &args);
            client.send_record(&record).await;
        }
        client.stream.close_sending();
        while client.receive().await.is_some() {}
        client.stream.shutdown();
        assert!(end.await.is_some());
        assert_eq!(scene.files.running(), 0);
        let null = good.ask((NFS, 3, 0), Args::new()).await;
        assert_eq!(null, Reply::Done(Body::new(Vec::new())));
    });
}
