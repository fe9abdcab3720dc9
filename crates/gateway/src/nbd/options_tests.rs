//! Negotiation scripts: what a client sends, what it is answered.

#[path = "options_tls_tests.rs"]
mod tls;

use super::super::contexts::ContextKind;
use super::*;

const LIMITS: NegotiationLimits = NegotiationLimits {
    options_max: 8,
    option_bytes_max: 1 << 16,
};
const FIXED: u32 = 1;
const NO_ZEROES: u32 = 2;

/// A negotiation whose questions are answered by a directory with the volume `disk` (1 MiB), its
/// snapshot `disk@mon`, and the volume `busy`, which is unavailable. The default export is `disk`.
struct Client {
    machine: Negotiation,
    end: Option<Output>,
}

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Reply {
    Reply {
        option,
        kind,
        data: data.to_vec(),
    }
}

impl Client {
    /// Past the greeting.
    fn new(flags: u32) -> Client {
        Client::of(flags, TlsPolicy::None)
    }

    fn of(flags: u32, tls: TlsPolicy) -> Client {
        let mut client = Client {
            machine: Negotiation::new(LIMITS, tls),
            end: None,
        };
        let greeting = b"NBDMAGICIHAVEOPT\x00\x03";
        assert_eq!(client.exchange(&[]), greeting);
        assert_eq!(client.exchange(&flags.to_be_bytes()), b"");
        client
    }

    /// Sends bytes, answers questions, returns what comes back.
    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.machine.handle_bytes(bytes);
        let mut received = Vec::new();
        loop {
            match self.machine.poll_output() {
                Output::Send(bytes) => received.extend(bytes),
                Output::Wait => return received,
                Output::Ask(question) => self.answer(question),
                end @ (Output::StartTls | Output::Transmit | Output::Close(_)) => {
                    self.end = Some(end);
                    return received;
                }
            }
        }
    }

    fn answer(&mut self, question: Question) {
        let canonical = |name: &str| match name {
            "" | "disk" => Ok("disk".to_owned()),
            "disk@mon" => Ok(name.to_owned()),
            "busy" => Err(OpenError::Unavailable),
            "closed" => Err(OpenError::Forbidden),
            "unruled" => Err(OpenError::Unruled),
            _ => Err(OpenError::NotFound),
        };
        match question {
            Question::Open { name, describe } => {
                self.machine
                    .handle_opened(canonical(&name).map(|name| ExportFacts {
                        read_only: name.contains('@'),
                        name,
                        description: if describe {
                            "a disk".to_owned()
                        } else {
                            String::new()
                        },
                        size_bytes: 1 << 20,
                    }));
            }
            Question::List { .. } => {
                let export = |name: &str, description: &str| ExportInfo {
                    name: name.to_owned(),
                    description: description.to_owned(),
                };
                self.machine
                    .handle_list(&[export("disk", "a disk"), export("disk@mon", "")]);
            }
            Question::Contexts {
                export,
                queries,
                listing,
            } => {
                let named = |name: &str, kind| NamedContext {
                    name: name.to_owned(),
                    kind,
                };
                let all = [
                    named("base:allocation", ContextKind::Allocation),
                    named(
                        "flagstone:changed:mon",
                        ContextKind::ChangedSince(flagstone_types::Lsn(5)),
                    ),
                ];
                let wanted = |position: usize| match position {
                    0 => queries.contains(&Query::Allocation),
                    _ => queries.contains(&Query::Changed("mon".to_owned())),
                } || (listing && queries.is_empty());
                let contexts = (0..2)
                    .filter(|&p| wanted(p))
                    .map(|p| all[p].clone())
                    .collect();
                let found = canonical(&export).map(|export| FoundContexts { export, contexts });
                self.machine.handle_contexts(found);
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Vec<Reply> {
        let received = self.exchange(&message(option, data));
        parse_replies(&received)
    }

    fn agreement(self) -> Agreement {
        assert_eq!(self.end, Some(Output::Transmit));
        self.machine.into_agreement().expect("agreed")
    }
}

fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn parse_replies(bytes: &[u8]) -> Vec<Reply> {
    let mut fields = Fields::new(bytes);
    let mut replies = Vec::new();
    while !fields.is_empty() {
        assert_eq!(fields.u64(), Some(0x0003_e889_0455_65a9));
        let option = fields.u32().expect("option");
        let kind = fields.u32().expect("kind");
        let len = fields.u32().expect("length") as usize;
        replies.push(reply(option, kind, fields.bytes(len).expect("data")));
    }
    replies
}

fn kinds(replies: &[Reply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.kind).collect()
}

fn go_data(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((requests.len() as u16).to_be_bytes());
    requests
        .iter()
        .for_each(|request| data.extend(request.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

const PLAIN_FLAGS: u16 = 0b1101_0110_1101;

// [nbd "Option types", NBD_OPT_EXPORT_NAME] test
#[test]
fn export_name() {
    let mut client = Client::new(FIXED | NO_ZEROES);
    let received = client.exchange(&message(option::EXPORT_NAME, b"disk"));
    let mut expected = (1u64 << 20).to_be_bytes().to_vec();
    expected.extend(PLAIN_FLAGS.to_be_bytes());
    assert_eq!(received, expected);
    let agreement = client.agreement();
    assert_eq!(
        (agreement.export.as_str(), agreement.mode),
        ("disk", ReplyMode::Simple)
    );

    // With padding, without fixed newstyle, for the default export.
    let mut client = Client::new(0);
    let received = client.exchange(&message(option::EXPORT_NAME, b""));
    expected.extend([0; 124]);
    assert_eq!(received, expected);
    assert_eq!(client.agreement().export, "disk");

    for name in [&b"nothing"[..], b"busy"] {
        let mut client = Client::new(FIXED);
        assert_eq!(client.exchange(&message(option::EXPORT_NAME, name)), b"");
        assert_eq!(
            client.end,
            Some(Output::Close(NegotiationEnd::NoSuchExport))
        );
    }
    for bad in [&b"\xff"[..], b"a\0"] {
        let mut client = Client::new(FIXED);
        assert_eq!(client.exchange(&message(option::EXPORT_NAME, bad)), b"");
        assert!(matches!(
            client.end,
            Some(Output::Close(NegotiationEnd::Violation(_)))
        ));
    }
}

// [nbd "Option types", NBD_OPT_INFO and NBD_OPT_GO] test
#[test]
fn info_and_go() {
    let mut client = Client::new(FIXED);
    let mut export = vec![0, 0];
    export.extend((1u64 << 20).to_be_bytes());
    export.extend(PLAIN_FLAGS.to_be_bytes());
    let replies = client.option(option::INFO, &go_data("", &[1, 2, 3, 99]));
    let block_size = [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0];
    assert_eq!(
        replies,
        [
            reply(option::INFO, option_reply::INFO, &export),
            reply(option::INFO, option_reply::INFO, b"\x00\x01disk"),
            reply(option::INFO, option_reply::INFO, b"\x00\x02a disk"),
            reply(option::INFO, option_reply::INFO, &block_size),
            reply(option::INFO, option_reply::ACK, b""),
        ]
    );
    assert_eq!(client.end, None);
    let replies = client.option(option::GO, &go_data("disk", &[]));
    assert_eq!(
        replies,
        [
            reply(option::GO, option_reply::INFO, &export),
            reply(option::GO, option_reply::ACK, b""),
        ]
    );
    assert_eq!(client.agreement().export, "disk");
}

#[test]
fn go_that_fails_can_be_repeated() {
    let mut client = Client::new(FIXED);
    let kinds_of = |client: &mut Client, data: &[u8]| kinds(&client.option(option::GO, data));
    assert_eq!(
        kinds_of(&mut client, &go_data("nothing", &[])),
        [option_reply::ERR_UNKNOWN]
    );
    assert_eq!(
        kinds_of(&mut client, &go_data("busy", &[])),
        [option_reply::ERR_SHUTDOWN]
    );
    let good = go_data("disk", &[3]);
    let mut longer = good.clone();
    longer.push(0);
    for bad in [
        &good[..good.len() - 1],
        &longer,
        b"",
        b"\xff\xff\xff\xff",
        &go_data("\0", &[]),
    ] {
        assert_eq!(kinds_of(&mut client, bad), [option_reply::ERR_INVALID]);
    }
    let kinds = kinds_of(&mut client, &good);
    assert_eq!(
        kinds,
        [option_reply::INFO, option_reply::INFO, option_reply::ACK]
    );
}

#[test]
fn read_only_exports_say_so() {
    let mut client = Client::new(FIXED);
    assert_eq!(
        kinds(&client.option(option::STRUCTURED_REPLY, b"")),
        [option_reply::ACK]
    );
    let replies = client.option(option::GO, &go_data("disk@mon", &[]));
    use transmission::*;
    let flags =
        HAS_FLAGS | READ_ONLY | SEND_FLUSH | SEND_FUA | SEND_DF | CAN_MULTI_CONN | SEND_CACHE;
    assert_eq!(replies[0].data[10..], flags.to_be_bytes());
    assert_eq!(client.agreement().mode, ReplyMode::Structured);
}

// [nbd "Option types", NBD_OPT_LIST and NBD_OPT_ABORT] test
#[test]
fn list_and_abort() {
    let mut client = Client::new(FIXED);
    let replies = client.option(option::LIST, b"");
    assert_eq!(
        replies,
        [
            reply(
                option::LIST,
                option_reply::SERVER,
                b"\x00\x00\x00\x04diska disk"
            ),
            reply(
                option::LIST,
                option_reply::SERVER,
                b"\x00\x00\x00\x08disk@mon"
            ),
            reply(option::LIST, option_reply::ACK, b""),
        ]
    );
    assert_eq!(
        kinds(&client.option(option::LIST, b"x")),
        [option_reply::ERR_INVALID]
    );
    let replies = client.option(option::ABORT, b"whatever");
    assert_eq!(replies, [reply(option::ABORT, option_reply::ACK, b"")]);
    assert_eq!(client.end, Some(Output::Close(NegotiationEnd::Aborted)));
}

/// What a client that doesn't read holds on to is a part of the list, however long that is.
#[test]
fn a_long_list_is_made_part_by_part() {
    for count in [0, 1, LIST_PART_EXPORTS, 10 * LIST_PART_EXPORTS, 10_001] {
        let exports: Vec<ExportInfo> = (0..count)
            .map(|index| ExportInfo {
                name: format!("{index:0128}"),
                description: String::new(),
            })
            .collect();
        let mut machine = Negotiation::new(LIMITS, TlsPolicy::None);
        machine.poll_output();
        machine.handle_bytes(&FIXED.to_be_bytes());
        machine.handle_bytes(&message(option::LIST, b""));
        let mut replies = Vec::new();
        loop {
            match machine.poll_output() {
                Output::Ask(Question::List { after }) => {
                    let from = after.map_or(0, |after| {
                        1 + exports.iter().position(|e| e.name == after).unwrap()
                    });
                    let part = exports[from..].iter().take(LIST_PART_EXPORTS).cloned();
                    machine.handle_list(&part.collect::<Vec<_>>());
                }
                Output::Send(bytes) => {
                    assert!(bytes.len() < 64 << 10, "{} bytes at once", bytes.len());
                    replies.extend(parse_replies(&bytes));
                }
                Output::Wait => break,
                other => panic!("{other:?}"),
            }
        }
        let last = replies.pop().unwrap();
        assert_eq!(last, reply(option::LIST, option_reply::ACK, b""));
        assert_eq!(replies.len(), count);
        for (found, export) in replies.iter().zip(&exports) {
            assert_eq!(found.data[4..], *export.name.as_bytes());
        }
    }
}

/// A client may not be shown all of a part, or nothing of it: what is behind it is asked for from its end all the same, and the client is told
/// the end once, when it has come.
#[test]
fn a_list_goes_on_behind_what_is_not_shown() {
    let mut machine = Negotiation::new(LIMITS, TlsPolicy::None);
    machine.poll_output();
    machine.handle_bytes(&FIXED.to_be_bytes());
    machine.handle_bytes(&message(option::LIST, b""));
    let export = |name: &str| ExportInfo {
        name: name.to_owned(),
        description: "told".to_owned(),
    };
    let parts = [
        (None, vec![export("a"), export("b")], Some("c")),
        (Some("c"), vec![], Some("f")),
        (Some("f"), vec![export("g")], None),
    ];
    let mut replies = Vec::new();
    for (asked, shown, after) in parts {
        let after = after.map(str::to_owned);
        // Behind what was sent of the part before.
        let question = loop {
            match machine.poll_output() {
                Output::Send(bytes) => replies.extend(parse_replies(&bytes)),
                Output::Ask(question) => break question,
                other => panic!("{other:?} before {asked:?}"),
            }
        };
        let expected = asked.map(str::to_owned);
        assert_eq!(question, Question::List { after: expected });
        machine.handle_list_part(&shown, after);
    }
    while let Output::Send(bytes) = machine.poll_output() {
        replies.extend(parse_replies(&bytes));
    }
    let shown = |name: &str| {
        let len = (name.len() as u32).to_be_bytes();
        let data = [&len, name.as_bytes(), b"told"].concat();
        reply(option::LIST, option_reply::SERVER, &data)
    };
    let end = reply(option::LIST, option_reply::ACK, b"");
    assert_eq!(replies, [shown("a"), shown("b"), shown("g"), end]);
    assert_eq!(machine.poll_output(), Output::Wait);
}

#[test]
fn too_many_contexts_are_not_listed() {
    for (count, kind) in [
        (LISTED_CONTEXTS_MAX, option_reply::META_CONTEXT),
        (LISTED_CONTEXTS_MAX + 1, option_reply::ERR_TOO_BIG),
    ] {
        let mut client = Client::new(FIXED);
        client.option(option::STRUCTURED_REPLY, b"");
        let asked = message(option::LIST_META_CONTEXT, &meta_data("disk", &[]));
        client.machine.handle_bytes(&asked);
        assert!(matches!(client.machine.poll_output(), Output::Ask(_)));
        let named = |index| NamedContext {
            name: format!("flagstone:changed:{index}"),
            kind: ContextKind::ChangedSince(flagstone_types::Lsn::ZERO),
        };
        client.machine.handle_contexts(Ok(FoundContexts {
            export: "disk".to_owned(),
            contexts: (0..count).map(named).collect(),
        }));
        let replies = parse_replies(&client.exchange(b""));
        assert_eq!(replies[0].kind, kind);
    }
}

#[test]
fn too_many_contexts_are_not_selected() {
    for (count, selected) in [(CONTEXTS_MAX, CONTEXTS_MAX), (CONTEXTS_MAX + 1, 0)] {
        let mut client = Client::new(FIXED);
        client.option(option::STRUCTURED_REPLY, b"");
        let asked = message(
            option::SET_META_CONTEXT,
            &meta_data("disk", &["base:allocation"]),
        );
        client.machine.handle_bytes(&asked);
        assert!(matches!(client.machine.poll_output(), Output::Ask(_)));
        let named = |index| NamedContext {
            name: format!("flagstone:changed:{index}"),
            kind: ContextKind::ChangedSince(flagstone_types::Lsn::ZERO),
        };
        client.machine.handle_contexts(Ok(FoundContexts {
            export: "disk".to_owned(),
            contexts: (0..count).map(named).collect(),
        }));
        let replies = parse_replies(&client.exchange(b""));
        let kind = match selected {
            0 => option_reply::ERR_TOO_BIG,
            _ => option_reply::META_CONTEXT,
        };
        assert_eq!(replies[0].kind, kind);
        client.option(option::GO, &go_data("disk", &[]));
        assert_eq!(client.agreement().contexts.len(), selected);
    }
}

// [nbd "NOTLS mode"] test
#[test]
fn tls_and_unknown_options_are_refused_politely() {
    let mut client = Client::new(FIXED);
    for option in [option::STARTTLS, 4, 12, u32::MAX] {
        let replies = client.option(option, b"");
        assert_eq!((replies.len(), replies[0].option), (1, option));
        assert_eq!(replies[0].kind, option_reply::ERR_UNSUP);
        assert!(!replies[0].data.is_empty(), "a sentence for people");
    }
    assert_eq!(
        kinds(&client.option(option::STARTTLS, b"x")),
        [option_reply::ERR_INVALID]
    );
    assert_eq!(
        kinds(&client.option(77, &[7; 1000])),
        [option_reply::ERR_UNSUP]
    );
    assert_eq!(
        kinds(&client.option(option::GO, &go_data("disk", &[]))).len(),
        2
    );
}

// [nbd-ext "Option types"] test
#[test]
fn structured_replies_and_extended_headers() {
    let mut client = Client::new(FIXED);
    for option in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        assert_eq!(
            kinds(&client.option(option, b"x")),
            [option_reply::ERR_INVALID]
        );
        assert_eq!(kinds(&client.option(option, b"")), [option_reply::ACK]);
    }
    let again = client.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(kinds(&again), [option_reply::ERR_EXT_HEADER_REQD]);
    let replies = client.option(option::GO, &go_data("disk", &[]));
    let flags = PLAIN_FLAGS | transmission::SEND_DF;
    assert_eq!(replies[0].data[10..], flags.to_be_bytes());
    assert_eq!(client.agreement().mode, ReplyMode::Extended);

    let mut client = Client::new(FIXED);
    client.option(option::EXTENDED_HEADERS, b"");
    assert_eq!(client.exchange(&message(option::EXPORT_NAME, b"disk")), b"");
    assert!(matches!(
        client.end,
        Some(Output::Close(NegotiationEnd::Violation(_)))
    ));
}

// [nbd "Option types", NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT] test
#[test]
fn metadata_contexts() {
    let mut client = Client::new(FIXED);
    let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
    for option in [list, set] {
        let early = client.option(option, &meta_data("disk", &[]));
        assert_eq!(
            kinds(&early),
            [option_reply::ERR_INVALID],
            "needs structured replies"
        );
    }
    client.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(
        client.option(list, &meta_data("", &[])),
        [
            reply(list, option_reply::META_CONTEXT, b"\0\0\0\0base:allocation"),
            reply(
                list,
                option_reply::META_CONTEXT,
                b"\0\0\0\0flagstone:changed:mon"
            ),
            reply(list, option_reply::ACK, b""),
        ]
    );
    let queries = ["flagstone:changed:mon", "qemu:x", "base:allocation"];
    assert_eq!(
        client.option(set, &meta_data("disk", &queries)),
        [
            reply(
                set,
                option_reply::META_CONTEXT,
                b"\0\0\0\x01base:allocation"
            ),
            reply(
                set,
                option_reply::META_CONTEXT,
                b"\0\0\0\x02flagstone:changed:mon"
            ),
            reply(set, option_reply::ACK, b""),
        ]
    );
    client.option(option::GO, &go_data("", &[]));
    let changed = ContextKind::ChangedSince(flagstone_types::Lsn(5));
    assert_eq!(
        client.agreement().contexts,
        [
            Context {
                id: 1,
                kind: ContextKind::Allocation
            },
            Context {
                id: 2,
                kind: changed
            }
        ]
    );
}

#[test]
fn a_selection_for_another_export_is_void() {
    let set = option::SET_META_CONTEXT;
    let select = |client: &mut Client, name, queries: &[&str]| {
        client.option(set, &meta_data(name, queries));
    };
    let selected = |mut client: Client| {
        client.option(option::GO, &go_data("disk", &[]));
        client.agreement().contexts.len()
    };
    let structured = || {
        let mut client = Client::new(FIXED);
        client.option(option::STRUCTURED_REPLY, b"");
        select(&mut client, "disk", &["base:allocation"]);
        client
    };
    assert_eq!(selected(structured()), 1);

    let mut client = structured();
    select(&mut client, "disk@mon", &["base:allocation"]);
    assert_eq!(selected(client), 0);

    let mut client = structured();
    let replies = client.option(set, &meta_data("disk", &["no colon"]));
    assert_eq!(kinds(&replies), [option_reply::ERR_INVALID]);
    assert_eq!(
        selected(client),
        0,
        "a failed selection clears the one before"
    );

    let mut client = structured();
    select(&mut client, "disk", &[]);
    assert_eq!(selected(client), 0);

    let mut client = structured();
    let replies = client.option(set, &meta_data("nothing", &["base:allocation"]));
    assert_eq!(kinds(&replies), [option_reply::ERR_UNKNOWN]);
    let truncated = &meta_data("disk", &["base:allocation"])[..12];
    assert_eq!(
        kinds(&client.option(set, truncated)),
        [option_reply::ERR_INVALID]
    );
}

#[test]
fn status_payload_is_advertised_where_it_works() {
    let flags_with = |queries: &[&str]| {
        let mut client = Client::new(FIXED);
        client.option(option::EXTENDED_HEADERS, b"");
        client.option(option::SET_META_CONTEXT, &meta_data("disk", queries));
        let replies = client.option(option::GO, &go_data("disk", &[]));
        u16::from_be_bytes([replies[0].data[10], replies[0].data[11]])
    };
    let flag = transmission::BLOCK_STATUS_PAYLOAD;
    assert_eq!(flags_with(&[]) & flag, 0);
    assert_eq!(flags_with(&["base:allocation"]) & flag, flag);
}

#[test]
fn clients_that_break_the_rules_are_dropped() {
    let dropped = |flags: u32, bytes: &[u8]| {
        let mut client = Client::new(flags);
        assert_eq!(client.exchange(bytes), b"");
        assert!(
            matches!(
                client.end,
                Some(Output::Close(NegotiationEnd::Violation(_)))
            ),
            "{bytes:?}: {:?}",
            client.end
        );
    };
    dropped(4, b"");
    dropped(0x8000_0001, b"");
    dropped(FIXED, b"IHAVEOPU\0\0\0\0\0\0\0\0");
    dropped(FIXED, b"GET / HTTP/1.1\r\n");
    dropped(FIXED, b"IHAVEOPT\0\0\0\x07\0\x01\0\x01");
    dropped(FIXED, b"IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    dropped(0, &message(option::LIST, b""));

    let mut client = Client::new(FIXED);
    for _ in 0..LIMITS.options_max {
        assert_eq!(client.option(99, b"").len(), 1);
    }
    assert_eq!(client.exchange(&message(99, b"")), b"");
    let end = NegotiationEnd::Violation("too many options");
    assert_eq!(client.end, Some(Output::Close(end)));

    // Each option has its own limit, and is refused before its data comes.
    let mut client = Client::new(FIXED);
    for _ in 0..3 {
        assert_eq!(client.option(99, &[0; 1 << 16]).len(), 1);
    }
    let too_long = message(99, &[0; (1 << 16) + 1]);
    assert_eq!(client.exchange(&too_long[..16]), b"");
    let end = NegotiationEnd::Violation("too much data in an option");
    assert_eq!(client.end, Some(Output::Close(end)));
}

#[test]
fn bytes_may_come_in_any_portions() {
    let mut script = FIXED.to_be_bytes().to_vec();
    script.extend(message(option::STRUCTURED_REPLY, b""));
    script.extend(message(option::LIST, b""));
    let queries = ["base:allocation"];
    script.extend(message(
        option::SET_META_CONTEXT,
        &meta_data("disk", &queries),
    ));
    script.extend(message(option::GO, &go_data("disk", &[1, 2, 3])));
    script.extend(b"what follows belongs to the transmission phase");

    let run = |portion: usize| {
        let mut client = Client {
            machine: Negotiation::new(LIMITS, TlsPolicy::None),
            end: None,
        };
        let mut received = client.exchange(&[]);
        for part in script.chunks(portion) {
            received.extend(client.exchange(part));
        }
        (received, client.agreement())
    };
    let (received, agreement) = run(script.len());
    assert_eq!(
        agreement.unread,
        b"what follows belongs to the transmission phase"
    );
    assert_eq!(agreement.contexts.len(), 1);
    for portion in [1, 2, 3, 7, 16, 64] {
        assert_eq!(run(portion), (received.clone(), agreement.clone()));
    }
}

#[test]
fn a_question_survives_a_move() {
    let mut client = Client::new(FIXED);
    client
        .machine
        .handle_bytes(&message(option::GO, &go_data("disk", &[])));
    let question = Question::Open {
        name: "disk".to_owned(),
        describe: false,
    };
    assert_eq!(client.machine.poll_output(), Output::Ask(question.clone()));
    let mut moved = Client {
        machine: client.machine.clone(),
        end: None,
    };
    assert_eq!(moved.machine.poll_output(), Output::Ask(question));
    let replies = parse_replies(&moved.exchange(b"early"));
    assert_eq!(kinds(&replies), [option_reply::INFO, option_reply::ACK]);
    assert_eq!(moved.agreement().unread, b"early");
}

/// Both by the same code; the sentence says which it is.
#[test]
fn who_may_not_open_an_export_is_told_why() {
    let mut client = Client::new(FIXED);
    let mut told = |name| {
        let replies = client.option(option::GO, &go_data(name, &[]));
        assert_eq!(kinds(&replies), [option_reply::ERR_POLICY]);
        String::from_utf8(replies[0].data.clone()).expect("a sentence")
    };
    assert!(told("closed").contains("from this address"));
    assert!(told("unruled").contains("can't be read who may open"));
}
