//! The negotiation machine: bytes of a client in, bytes for the client and questions to the
//! directory out. No I/O, no clock.
//!
//! Greeting, client flags, then options one after another until one of them starts the transmission
//! phase or ends the connection. [nbd "Fixed newstyle negotiation"]
//!
//! The driver calls [`Negotiation::poll_output`] until it says [`Output::Wait`], feeds what arrives
//! to [`Negotiation::handle_bytes`], and answers questions with the `handle_` verbs. A question stays
//! asked until it is answered, so the whole machine, which is plain data, can move to another core
//! and have its question answered there.
//!
//! Invariants: an option's length is checked before its data is waited for; what is buffered never
//! exceeds [`NegotiationLimits::option_bytes_max`] plus one read of the driver; bytes behind the
//! option that starts transmission are kept and handed on.

use super::contexts::{CONTEXTS_MAX, Context, NamedContext, Query, parse_query};
use super::wire::{
    EXPORT_NAME_PADDING_BYTES, Fields, OPTION_HEADER_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    PAYLOAD_MAX_BYTES, ReplyMode, SERVER_MAGIC, handshake, info, option, option_reply,
    transmission, valid_string,
};
use crate::volume::{ExportInfo, OpenError};

/// The size at and above which aligned requests are efficient, in bytes: a block.
const PREFERRED_BLOCK_BYTES: u32 = flagstone_types::BLOCK_SIZE as u32;

/// Exports in one part of a listing. A listing is asked for and sent part by part, so that a client
/// that doesn't read it holds some 10 KiB of a node with 10,000 volumes, and 150 KiB at most.
pub const LIST_PART_EXPORTS: usize = 256;

/// Contexts in a listing; more are refused. A client can ask for one of them by its name.
const LISTED_CONTEXTS_MAX: usize = 1024;

/// What one client may send before it starts transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiationLimits {
    /// Options. A client that looks at each export of a node sends about six for each.
    pub options_max: u32,
    /// Data of one option, in bytes.
    pub option_bytes_max: u32,
}

/// What a server says to `STARTTLS`. [nbd "TLS support"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// Not offered.
    None,
    /// Offered to who asks for it.
    Offered,
    /// Without it, nothing else is answered.
    Required,
}

/// What the driver does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Ask the directory and call the matching `handle_` verb.
    Ask(Question),
    /// Nothing until more bytes come.
    Wait,
    /// Begin TLS, with nothing of what was received before, and call [`Negotiation::handle_tls`].
    StartTls,
    /// The transmission phase begins: [`Negotiation::into_agreement`].
    Transmit,
    /// Close the connection.
    Close(NegotiationEnd),
}

/// Why a negotiation ends without a transmission phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NegotiationEnd {
    /// The client has said so.
    Aborted,
    /// The export asked for does not exist, in an option that can't be answered with an error.
    NoSuchExport,
    /// The client breaks the protocol or a limit: what it did.
    Violation(&'static str),
}

/// What only the directory knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Open this export; [`Negotiation::handle_opened`].
    Open {
        /// As the client wrote it; empty for the default export.
        name: String,
        /// The client wants to see the description.
        describe: bool,
    },
    /// List the next [`LIST_PART_EXPORTS`] exports; [`Negotiation::handle_list`].
    List {
        /// Those behind this name; `None` from the first one on.
        after: Option<String>,
    },
    /// Find metadata contexts; [`Negotiation::handle_contexts`].
    Contexts {
        /// As the client wrote it; empty for the default export.
        export: String,
        /// What to look for.
        queries: Vec<Query>,
        /// Wildcards count, and no query at all means everything.
        listing: bool,
    },
}

/// What the driver found out about an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportFacts {
    /// Its canonical name.
    pub name: String,
    /// A sentence for people; may be empty.
    pub description: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// True if changes are refused.
    pub read_only: bool,
}

/// Contexts that were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundContexts {
    /// Canonical name of the export they belong to.
    pub export: String,
    /// In the order of the queries, each once.
    pub contexts: Vec<NamedContext>,
}

/// What was agreed on for the transmission phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// Canonical name of the export.
    pub export: String,
    /// Headers in use.
    pub mode: ReplyMode,
    /// Contexts that `BLOCK_STATUS` reports.
    pub contexts: Vec<Context>,
    /// Bytes received behind the last option.
    pub unread: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    ClientFlags,
    Options,
    Asking(Question, Then),
    StartTls,
    Transmit(String),
    Closed(NegotiationEnd),
}

/// The option that a question was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Then {
    Describe { option: u32, requests: Vec<u16> },
    ExportName,
    List,
    Contexts { option: u32 },
}

/// The machine. See the module's page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiation {
    limits: NegotiationLimits,
    tls: TlsPolicy,
    /// What comes and goes now is under TLS.
    is_secure: bool,
    /// Received and not yet used.
    input: Vec<u8>,
    /// To be sent before anything else happens.
    output: Vec<u8>,
    phase: Phase,
    fixed: bool,
    no_zeroes: bool,
    mode: ReplyMode,
    /// What the last successful `SET_META_CONTEXT` selected, and for which export.
    selected: Option<(String, Vec<Context>)>,
    options_seen: u32,
}

impl Negotiation {
    /// A new connection; its first output is the greeting.
    pub fn new(limits: NegotiationLimits, tls: TlsPolicy) -> Negotiation {
        let mut output = Vec::with_capacity(18);
        output.extend_from_slice(&SERVER_MAGIC.to_be_bytes());
        output.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        output.extend_from_slice(&flags.to_be_bytes());
        Negotiation {
            limits,
            tls,
            is_secure: false,
            input: Vec::new(),
            output,
            phase: Phase::ClientFlags,
            fixed: false,
            no_zeroes: false,
            mode: ReplyMode::Simple,
            selected: None,
            options_seen: 0,
        }
    }

    /// Takes what the client has sent.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Answers [`Question::Open`].
    pub fn handle_opened(&mut self, result: Result<ExportFacts, OpenError>) {
        match self.take_question() {
            Some(Then::Describe { option, requests }) => match result {
                Ok(facts) => self.describe(option, &requests, facts),
                Err(error) => self.refuse_open(option, error),
            },
            Some(Then::ExportName) => match result {
                Ok(facts) => self.start_by_name(facts),
                // [nbd "Option types", NBD_OPT_EXPORT_NAME] there is no way to report an error.
                Err(_) => self.close(NegotiationEnd::NoSuchExport),
            },
            other => debug_assert!(false, "the question was not Open but {other:?}"),
        }
    }

    /// Answers [`Question::List`]. Fewer than [`LIST_PART_EXPORTS`] are the last ones.
    pub fn handle_list(&mut self, exports: &[ExportInfo]) {
        let last = exports.last().map(|last| last.name.clone());
        let after = last.filter(|_| exports.len() >= LIST_PART_EXPORTS);
        self.handle_list_part(exports, after);
    }

    /// The same, of a part of which not everything is shown. `after`: more are behind this name.
    pub fn handle_list_part(&mut self, exports: &[ExportInfo], after: Option<String>) {
        if self.take_question() != Some(Then::List) {
            debug_assert!(false, "the question was not List");
            return;
        }
        for export in exports {
            let name = export.name.as_bytes();
            let name_len = (name.len() as u32).to_be_bytes();
            let data = [&name_len, name, export.description.as_bytes()];
            self.reply(option::LIST, option_reply::SERVER, &data);
        }
        match after {
            Some(_) => self.phase = Phase::Asking(Question::List { after }, Then::List),
            None => self.acknowledge(option::LIST),
        }
    }

    /// Answers [`Question::Contexts`].
    pub fn handle_contexts(&mut self, result: Result<FoundContexts, OpenError>) {
        let Some(Then::Contexts { option }) = self.take_question() else {
            debug_assert!(false, "the question was not Contexts");
            return;
        };
        let found = match result {
            Ok(found) => found,
            Err(error) => return self.refuse_open(option, error),
        };
        let selecting = option == option::SET_META_CONTEXT;
        if selecting && found.contexts.len() > CONTEXTS_MAX {
            let text = "at most 16 metadata contexts can be selected";
            return self.refuse(option, option_reply::ERR_TOO_BIG, text);
        }
        if found.contexts.len() > LISTED_CONTEXTS_MAX {
            let text = "there are too many metadata contexts to list; ask for one by its name";
            return self.refuse(option, option_reply::ERR_TOO_BIG, text);
        }
        let mut contexts = Vec::new();
        for (position, context) in found.contexts.iter().enumerate() {
            // [nbd "Option types", NBD_OPT_LIST_META_CONTEXT] the id is zero in listings.
            let id = if selecting { position as u32 + 1 } else { 0 };
            let data = [&id.to_be_bytes(), context.name.as_bytes()];
            self.reply(option, option_reply::META_CONTEXT, &data);
            contexts.push(Context {
                id,
                kind: context.kind,
            });
        }
        if selecting {
            self.selected = Some((found.export, contexts));
        }
        self.acknowledge(option);
    }

    /// TLS has begun. What was negotiated before is forgotten: anybody on the way may have said it.
    /// [nbd "TLS support"] The flags that came before all options stay, as they are not said again.
    pub fn handle_tls(&mut self) {
        debug_assert!(self.phase == Phase::StartTls && self.input.is_empty());
        self.is_secure = true;
        self.mode = ReplyMode::Simple;
        self.selected = None;
        self.phase = Phase::Options;
    }

    /// What to do next.
    pub fn poll_output(&mut self) -> Output {
        loop {
            if !self.output.is_empty() {
                return Output::Send(std::mem::take(&mut self.output));
            }
            let advanced = match &self.phase {
                Phase::ClientFlags => self.take_client_flags(),
                Phase::Options => self.take_option(),
                Phase::Asking(question, _) => return Output::Ask(question.clone()),
                Phase::StartTls => return Output::StartTls,
                Phase::Transmit(_) => return Output::Transmit,
                Phase::Closed(end) => return Output::Close(*end),
            };
            if !advanced {
                return Output::Wait;
            }
        }
    }

    /// What was agreed on; `None` unless the last output was [`Output::Transmit`].
    pub fn into_agreement(self) -> Option<Agreement> {
        let Phase::Transmit(export) = self.phase else {
            return None;
        };
        // [nbd "Option types", NBD_OPT_SET_META_CONTEXT] a selection for another export is void.
        let contexts = match self.selected {
            Some((name, contexts)) if name == export => contexts,
            _ => Vec::new(),
        };
        Some(Agreement {
            export,
            mode: self.mode,
            contexts,
            unread: self.input,
        })
    }

    /// False if more bytes are needed.
    fn take_client_flags(&mut self) -> bool {
        let Some(flags) = Fields::new(&self.input).u32() else {
            return false;
        };
        self.input.drain(..4);
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            // [nbd "Client flags"] unknown flags: drop the connection.
            self.close(NegotiationEnd::Violation("unknown client flags"));
            return true;
        }
        self.fixed = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        true
    }

    /// False if more bytes are needed.
    fn take_option(&mut self) -> bool {
        let mut header = Fields::new(&self.input);
        let (Some(magic), Some(option), Some(len)) = (header.u64(), header.u32(), header.u32())
        else {
            return false;
        };
        if magic != OPTION_MAGIC {
            self.close(NegotiationEnd::Violation(
                "bad magic number in front of an option",
            ));
            return true;
        }
        if self.options_seen >= self.limits.options_max {
            self.close(NegotiationEnd::Violation("too many options"));
            return true;
        }
        if len > self.limits.option_bytes_max {
            self.close(NegotiationEnd::Violation("too much data in an option"));
            return true;
        }
        let end = OPTION_HEADER_BYTES + len as usize;
        if self.input.len() < end {
            return false;
        }
        self.options_seen += 1;
        let rest = self.input.split_off(end);
        let message = std::mem::replace(&mut self.input, rest);
        self.handle_option(option, &message[OPTION_HEADER_BYTES..]);
        true
    }

    fn handle_option(&mut self, option: u32, data: &[u8]) {
        if !self.fixed && option != option::EXPORT_NAME {
            // [nbd "Newstyle negotiation"] the client would not understand a reply.
            self.close(NegotiationEnd::Violation(
                "an option without fixed newstyle negotiation",
            ));
            return;
        }
        if self.tls == TlsPolicy::Required
            && !self.is_secure
            && !matches!(option, option::STARTTLS | option::ABORT)
        {
            return self.require_tls(option);
        }
        match option {
            option::EXPORT_NAME => self.handle_export_name(data),
            option::ABORT => {
                self.acknowledge(option);
                self.close(NegotiationEnd::Aborted);
            }
            option::LIST
            | option::STARTTLS
            | option::STRUCTURED_REPLY
            | option::EXTENDED_HEADERS
                if !data.is_empty() =>
            {
                self.refuse(option, option_reply::ERR_INVALID, "this option has no data");
            }
            option::LIST => {
                self.phase = Phase::Asking(Question::List { after: None }, Then::List);
            }
            option::STARTTLS => self.handle_start_tls(),
            option::INFO | option::GO => self.handle_go(option, data),
            option::STRUCTURED_REPLY => self.handle_structured_reply(),
            option::EXTENDED_HEADERS => {
                self.mode = ReplyMode::Extended;
                self.acknowledge(option);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.handle_meta_context(option, data);
            }
            _ => self.refuse(option, option_reply::ERR_UNSUP, "not a known option"),
        }
    }

    fn require_tls(&mut self, option: u32) {
        if option == option::EXPORT_NAME {
            // [nbd "TLS support"] it has no answer that could say why.
            self.close(NegotiationEnd::Violation(
                "EXPORT_NAME without TLS, which is required",
            ));
            return;
        }
        let text = "this server wants TLS first";
        self.refuse(option, option_reply::ERR_TLS_REQD, text);
    }

    fn handle_start_tls(&mut self) {
        let option = option::STARTTLS;
        if self.tls == TlsPolicy::None {
            let text = "TLS is not offered; the connection goes on without it";
            return self.refuse(option, option_reply::ERR_UNSUP, text);
        }
        if self.is_secure {
            let text = "TLS is in use already";
            return self.refuse(option, option_reply::ERR_INVALID, text);
        }
        if !self.input.is_empty() {
            // Kept, it would be taken for what TLS protects, and anybody on the way may have put it there.
            self.close(NegotiationEnd::Violation(
                "something behind STARTTLS, before its answer",
            ));
            return;
        }
        self.acknowledge(option);
        self.phase = Phase::StartTls;
    }

    fn handle_export_name(&mut self, data: &[u8]) {
        // [nbd-ext "Option types", NBD_OPT_EXPORT_NAME] not after extended headers.
        if self.mode == ReplyMode::Extended {
            self.close(NegotiationEnd::Violation(
                "EXPORT_NAME after extended headers",
            ));
            return;
        }
        match valid_string(data) {
            Some(name) => {
                let question = Question::Open {
                    name: name.to_owned(),
                    describe: false,
                };
                self.phase = Phase::Asking(question, Then::ExportName);
            }
            None => self.close(NegotiationEnd::Violation(
                "an export name that is not a string",
            )),
        }
    }

    fn handle_structured_reply(&mut self) {
        if self.mode == ReplyMode::Extended {
            let text = "extended headers are in use already";
            let kind = option_reply::ERR_EXT_HEADER_REQD;
            return self.refuse(option::STRUCTURED_REPLY, kind, text);
        }
        self.mode = ReplyMode::Structured;
        self.acknowledge(option::STRUCTURED_REPLY);
    }

    fn handle_go(&mut self, option: u32, data: &[u8]) {
        let Some((name, requests)) = parse_go(data) else {
            return self.refuse(
                option,
                option_reply::ERR_INVALID,
                "the request is malformed",
            );
        };
        let describe = requests.contains(&info::DESCRIPTION);
        let question = Question::Open { name, describe };
        self.phase = Phase::Asking(question, Then::Describe { option, requests });
    }

    fn handle_meta_context(&mut self, option: u32, data: &[u8]) {
        let listing = option == option::LIST_META_CONTEXT;
        if !listing {
            // [nbd "Option types", NBD_OPT_SET_META_CONTEXT] also a failure clears the selection.
            self.selected = None;
        }
        if !self.mode.is_chunked() {
            let text = "metadata contexts need structured replies or extended headers";
            return self.refuse(option, option_reply::ERR_INVALID, text);
        }
        let Some((export, queries)) = parse_meta_context(data) else {
            return self.refuse(
                option,
                option_reply::ERR_INVALID,
                "the request is malformed",
            );
        };
        let question = Question::Contexts {
            export,
            queries,
            listing,
        };
        self.phase = Phase::Asking(question, Then::Contexts { option });
    }

    /// Ends `INFO` and `GO`.
    fn describe(&mut self, option: u32, requests: &[u16], facts: ExportFacts) {
        let flags = self.transmission_flags(&facts);
        let reply_info = |this: &mut Negotiation, kind: u16, data: &[u8]| {
            this.reply(option, option_reply::INFO, &[&kind.to_be_bytes(), data]);
        };
        let mut export = [0; 10];
        export[..8].copy_from_slice(&facts.size_bytes.to_be_bytes());
        export[8..].copy_from_slice(&flags.to_be_bytes());
        reply_info(self, info::EXPORT, &export);
        if requests.contains(&info::NAME) {
            reply_info(self, info::NAME, facts.name.as_bytes());
        }
        if requests.contains(&info::DESCRIPTION) && !facts.description.is_empty() {
            reply_info(self, info::DESCRIPTION, facts.description.as_bytes());
        }
        if requests.contains(&info::BLOCK_SIZE) {
            let mut sizes = [0; 12];
            sizes[..4].copy_from_slice(&1u32.to_be_bytes());
            sizes[4..8].copy_from_slice(&PREFERRED_BLOCK_BYTES.to_be_bytes());
            sizes[8..].copy_from_slice(&PAYLOAD_MAX_BYTES.to_be_bytes());
            reply_info(self, info::BLOCK_SIZE, &sizes);
        }
        self.acknowledge(option);
        if option == option::GO {
            self.phase = Phase::Transmit(facts.name);
        }
    }

    /// Ends `EXPORT_NAME`.
    fn start_by_name(&mut self, facts: ExportFacts) {
        let flags = self.transmission_flags(&facts);
        self.output
            .extend_from_slice(&facts.size_bytes.to_be_bytes());
        self.output.extend_from_slice(&flags.to_be_bytes());
        if !self.no_zeroes {
            self.output
                .extend_from_slice(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.phase = Phase::Transmit(facts.name);
    }

    fn transmission_flags(&self, facts: &ExportFacts) -> u16 {
        use transmission::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        flags |= if facts.read_only {
            READ_ONLY
        } else {
            SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO
        };
        if self.mode.is_chunked() {
            flags |= SEND_DF;
        }
        let selected_here = self
            .selected
            .as_ref()
            .is_some_and(|(export, contexts)| *export == facts.name && !contexts.is_empty());
        if self.mode == ReplyMode::Extended && selected_here {
            flags |= BLOCK_STATUS_PAYLOAD;
        }
        flags
    }

    /// Goes back to waiting for options and returns what the question was for.
    fn take_question(&mut self) -> Option<Then> {
        if !matches!(self.phase, Phase::Asking(..)) {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Options) {
            Phase::Asking(_, then) => Some(then),
            _ => None,
        }
    }

    fn refuse_open(&mut self, option: u32, error: OpenError) {
        match error {
            OpenError::NotFound => {
                let text = "no such volume or snapshot (the empty name works while there is \
                            exactly one volume)";
                self.refuse(option, option_reply::ERR_UNKNOWN, text);
            }
            OpenError::Moved => {
                let text = "the volume was moved to another node: attach it there, at that node's address for NBD (`flagstone volume show NAME` \
                            there says it; on this one it says which node that is, by its address for the native protocol)";
                self.refuse(option, option_reply::ERR_UNKNOWN, text);
            }
            OpenError::Unavailable => {
                let text = "the volume is not available at the moment (its node stops, or it is held until another one says whether it has come there)";
                self.refuse(option, option_reply::ERR_SHUTDOWN, text);
            }
            OpenError::Forbidden => {
                let text = "the volume may not be opened from this address, or not on this one of the node";
                self.refuse(option, option_reply::ERR_POLICY, text);
            }
            OpenError::Unruled => {
                let text = "it can't be read who may open the volume, so nobody may; the node's log says how \
                            that is mended";
                self.refuse(option, option_reply::ERR_POLICY, text);
            }
        }
    }

    fn refuse(&mut self, option: u32, kind: u32, text: &str) {
        self.reply(option, kind, &[text.as_bytes()]);
    }

    fn acknowledge(&mut self, option: u32) {
        self.reply(option, option_reply::ACK, &[]);
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[&[u8]]) {
        let len: usize = data.iter().map(|part| part.len()).sum();
        self.output
            .extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&option.to_be_bytes());
        self.output.extend_from_slice(&kind.to_be_bytes());
        self.output.extend_from_slice(&(len as u32).to_be_bytes());
        for part in data {
            self.output.extend_from_slice(part);
        }
    }

    fn close(&mut self, end: NegotiationEnd) {
        self.phase = Phase::Closed(end);
    }
}

/// The data of `INFO` and `GO`: a name and what the client wants to know.
fn parse_go(data: &[u8]) -> Option<(String, Vec<u16>)> {
    let mut fields = Fields::new(data);
    let name = fields.string()?.to_owned();
    let count = fields.u16()?;
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(fields.u16()?);
    }
    fields.is_empty().then_some((name, requests))
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`: an export's name and queries.
fn parse_meta_context(data: &[u8]) -> Option<(String, Vec<Query>)> {
    let mut fields = Fields::new(data);
    let export = fields.string()?.to_owned();
    let count = fields.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(parse_query(fields.string()?)?);
    }
    fields.is_empty().then_some((export, queries))
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Negotiation>();
};

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
