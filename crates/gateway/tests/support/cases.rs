//! What the fuzzers run: one function from bytes to "nothing bad happened". The stable tests call
//! them with random and mutated bytes, the fuzz targets with whatever the fuzzer comes up with.

use flagstone_gateway::nbd::contexts::{ContextKind, NamedContext};
use flagstone_gateway::nbd::options::{
    ExportFacts, FoundContexts, Negotiation, NegotiationLimits, Output, Question, TlsPolicy,
};
use flagstone_gateway::nbd::{CloseReason, NbdLimits, NbdServer, Outcome};
use flagstone_gateway::volume::{ExportInfo, OpenError};
use flagstone_platform::{IoBuf, Stream};

use super::client::{go_data, meta_data, option_message};
use super::memory::{MemoryDirectory, MemoryVolume};
use super::stream::{Link, MemoryStream};
use super::world::World;

const LIMITS: NegotiationLimits = NegotiationLimits {
    options_max: 32,
    option_bytes_max: 1 << 16,
};

/// Feeds `bytes` to the negotiation machine, in portions of `portion`, and answers its questions.
/// Returns what it sent and how it ended, if it did.
pub fn negotiation(bytes: &[u8], portion: usize) -> (Vec<u8>, Option<Output>) {
    negotiate(bytes, portion, TlsPolicy::None)
}

/// The same of a server that wants TLS: before it has begun nothing is looked up and nothing is agreed on.
pub fn negotiation_with_tls(bytes: &[u8], portion: usize) -> (Vec<u8>, Option<Output>) {
    negotiate(bytes, portion, TlsPolicy::Required)
}

fn negotiate(bytes: &[u8], portion: usize, tls: TlsPolicy) -> (Vec<u8>, Option<Output>) {
    let mut machine = Negotiation::new(LIMITS, tls);
    let mut is_secure = tls != TlsPolicy::Required;
    let mut sent = Vec::new();
    let mut portions = bytes.chunks(portion.max(1));
    loop {
        match machine.poll_output() {
            Output::Send(bytes) => {
                assert!(!bytes.is_empty(), "progress");
                sent.extend(bytes);
            }
            Output::Wait => match portions.next() {
                Some(portion) => machine.handle_bytes(portion),
                None => return (sent, None),
            },
            Output::Ask(question) => {
                assert!(is_secure, "nothing is looked up without TLS");
                answer(&mut machine, question);
            }
            Output::StartTls => {
                assert!(!std::mem::replace(&mut is_secure, true), "TLS begins once");
                machine.handle_tls();
            }
            Output::Transmit => {
                assert!(is_secure, "nothing is agreed on without TLS");
                let agreement = machine.into_agreement().expect("agreed");
                assert!(agreement.unread.len() <= bytes.len());
                return (sent, Some(Output::Transmit));
            }
            Output::Close(end) => return (sent, Some(Output::Close(end))),
        }
    }
}

fn answer(machine: &mut Negotiation, question: Question) {
    let found = |name: &str| match name.len() % 3 {
        0 => Err(OpenError::NotFound),
        1 => Ok(name.to_owned()),
        _ => Err(OpenError::Unavailable),
    };
    match question {
        Question::Open { name, .. } => {
            machine.handle_opened(found(&name).map(|name| ExportFacts {
                name,
                description: "x".to_owned(),
                size_bytes: 1 << 20,
                read_only: false,
            }))
        }
        Question::List { .. } => machine.handle_list(&[ExportInfo {
            name: "a".to_owned(),
            description: String::new(),
        }]),
        Question::Contexts {
            export, queries, ..
        } => {
            let kind = ContextKind::Allocation;
            let named = |position: usize| NamedContext {
                name: format!("base:{position}"),
                kind,
            };
            let contexts = (0..queries.len().min(40)).map(named).collect();
            machine
                .handle_contexts(found(&export).map(|export| FoundContexts { export, contexts }));
        }
    }
}

/// A client's side of a whole negotiation, to be mutated.
pub fn negotiation_script() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option_message(5, b""));
    bytes.extend(option_message(8, b""));
    bytes.extend(option_message(9, &meta_data("d", &["base:"])));
    bytes.extend(option_message(
        10,
        &meta_data("d", &["base:allocation", "flagstone:changed:s"]),
    ));
    bytes.extend(option_message(3, b""));
    bytes.extend(option_message(6, &go_data("d")));
    bytes.extend(option_message(7, &go_data("d")));
    bytes
}

/// Modes of [`requests`] in the order of their numbers: the client's side up to transmission.
fn prelude(mode: u8) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    match mode % 3 {
        0 => {}
        1 => bytes.extend(option_message(8, b"")),
        _ => bytes.extend(option_message(11, b"")),
    }
    if !mode.is_multiple_of(3) {
        bytes.extend(option_message(10, &meta_data("d", &["base:allocation"])));
    }
    bytes.extend(option_message(7, &go_data("d")));
    bytes
}

/// Sends `bytes` as the request stream of a connection to a small volume and closes. The server must
/// end the connection, leave nothing running and give all memory back.
pub fn requests(mode: u8, seed: u64, bytes: &[u8]) -> CloseReason {
    let world = World::new(seed);
    let volume = MemoryVolume::new(&world, 64 << 10);
    volume.memory.slow.set(seed.is_multiple_of(3));
    let directory = MemoryDirectory::with("d", &volume);
    let server = NbdServer::new(world.clone(), directory, NbdLimits::default());
    let portion_max = if seed.is_multiple_of(5) {
        1 + (seed / 5 % 40) as usize
    } else {
        usize::MAX
    };
    let (near, far) = Link {
        portion_max,
        seed,
        ..Link::default()
    }
    .connect();
    let mut script = prelude(mode);
    script.extend(bytes);
    let reason = world.run(drive(world.clone(), server.clone(), near, far, script));
    assert_eq!(volume.memory.running.get(), 0, "no operation is left");
    assert_eq!(server.counters().connections, 0);
    drop(server);
    assert_eq!(
        std::rc::Rc::strong_count(&volume.memory),
        1,
        "no handle of the volume is left"
    );
    reason
}

async fn drive(
    world: World,
    server: NbdServer<World, MemoryDirectory>,
    near: MemoryStream,
    far: MemoryStream,
    script: Vec<u8>,
) -> CloseReason {
    use flagstone_platform::Platform;
    let sender = near.clone();
    world.spawn(async move {
        let _ = sender.write_all(vec![IoBuf::copy_of(&script)]).await;
        sender.close_sending();
    });
    let reader = near.clone();
    world.spawn(async move {
        loop {
            let (_, result) = reader.read(IoBuf::zeroed(4096)).await;
            if !matches!(result, Ok(1..)) {
                return;
            }
        }
    });
    match server.serve_connection(far).await {
        Outcome::Closed(reason) => reason,
        Outcome::HandOver { .. } => panic!("there is one core"),
    }
}
